"""A picture of the engine: decode steps above their roofline, and one load through three kinds of batches."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.proofs.engine.mixed_lengths import ThroughputCurve
from penstock.proofs.engine.roofline import DecodeStep


def plot_engine(decode_steps: Sequence[DecodeStep], curves: Mapping[str, ThroughputCurve], path: Path) -> None:
    """Write a PNG or SVG, by the suffix of `path`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (steps, load) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    names = [str(each.batch) for each in decode_steps]
    outside = [each.step_s * each.outside_forward_share * 1e3 for each in decode_steps]
    forward = [each.step_s * 1e3 - more for each, more in zip(decode_steps, outside, strict=True)]
    steps.bar(names, forward, label="the model's forward", color="tab:blue")
    steps.bar(names, outside, bottom=forward, label="outside it", color="tab:orange")
    steps.scatter(
        names, [each.roofline_s * 1e3 for each in decode_steps], marker="_", s=1500, color="black", label="roofline"
    )
    steps.set(title="Decode step", xlabel="sequences", ylabel="ms")
    for name, flow in curves.items():
        load.plot(flow.seconds, flow.tokens, label=f"{name}: {flow.tokens_per_s:,.0f} tokens/s")
    load.set(title="Requests of mixed lengths", xlabel="s", ylabel="output tokens that were asked for")
    for axes in (steps, load):
        axes.grid(alpha=0.3)
        axes.legend(markerscale=0.4)
    figure.savefig(path, dpi=150)
    plt.close(figure)
