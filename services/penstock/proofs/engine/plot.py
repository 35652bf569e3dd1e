"""A picture of the engine: decode steps above their roofline, and one load through three kinds of batches."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.proofs.engine.mixed_lengths import Flow
from penstock.proofs.engine.roofline import Decode


def plot_engine(decodes: Sequence[Decode], flows: Mapping[str, Flow], path: Path) -> None:
    """Write a PNG or SVG, by the suffix of `path`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (steps, load) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    names = [str(each.batch) for each in decodes]
    outside = [each.step * each.outside * 1e3 for each in decodes]
    forward = [each.step * 1e3 - more for each, more in zip(decodes, outside, strict=True)]
    steps.bar(names, forward, label="the model's forward", color="tab:blue")
    steps.bar(names, outside, bottom=forward, label="outside it", color="tab:orange")
    steps.scatter(names, [each.roofline * 1e3 for each in decodes], marker="_", s=1500, color="black", label="roofline")
    steps.set(title="Decode step", xlabel="sequences", ylabel="ms")
    for name, flow in flows.items():
        load.plot(flow.seconds, flow.tokens, label=f"{name}: {flow.rate:,.0f} tokens/s")
    load.set(title="Requests of mixed lengths", xlabel="s", ylabel="output tokens that were asked for")
    for axes in (steps, load):
        axes.grid(alpha=0.3)
        axes.legend(markerscale=0.4)
    figure.savefig(path, dpi=150)
    plt.close(figure)
