"""The figure of the engine proof: decode steps with their roofline, and one load through three kinds of batches."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.bench.plot import new_figure
from penstock.proofs.engine.decode_steps import DecodeStep
from penstock.proofs.engine.mixed_lengths import ThroughputCurve


def plot_engine(decode_steps: Sequence[DecodeStep], curves: Mapping[str, ThroughputCurve], path: Path) -> None:
    names = [str(step.batch) for step in decode_steps]
    outside = [step.step_s * step.outside_forward_share * 1e3 for step in decode_steps]
    forward = [step.step_s * 1e3 - more for step, more in zip(decode_steps, outside, strict=True)]
    rooflines = [step.roofline_s * 1e3 for step in decode_steps]
    with new_figure(path, columns=2, height=4.4) as (steps, load):
        steps.bar(names, forward, label="the model's forward", color="tab:blue")
        steps.bar(names, outside, bottom=forward, label="outside it", color="tab:orange")
        steps.plot(names, rooflines, "k_", markersize=38, label="roofline")
        steps.set(title="Decode step", xlabel="sequences", ylabel="ms")
        steps.legend(markerscale=0.4)
        for name, curve in curves.items():
            load.plot(curve.seconds, curve.tokens, label=f"{name}: {curve.tokens_per_s:,.0f} tokens/s")
        load.set(title="Requests of mixed lengths", xlabel="s", ylabel="requested output tokens")
