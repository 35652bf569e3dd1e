"""Pictures of runs: tokens over time and the distribution of TTFT, one line per run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.bench.transcript import Transcript


def plot_runs(runs: Mapping[str, Sequence[Transcript]], path: Path) -> None:
    """Write a PNG or SVG, by the suffix of `path`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (progress, first) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name, histories in runs.items():
        begin = min(each.started_at for each in histories)
        arrivals = sorted((at - begin, each.tokens / len(each.arrivals)) for each in histories for at in each.arrivals)
        total, times, made = 0.0, [0.0], [0.0]
        for at, tokens in arrivals:
            total += tokens
            times.append(at)
            made.append(total)
        progress.plot(times, made, label=f"{name}: {total / times[-1]:,.0f} tokens/s" if arrivals else name)
        waits = sorted(each.ttft for each in histories if each.ttft is not None)
        first.plot(waits, [(rank + 1) / len(waits) for rank in range(len(waits))], label=name)
    progress.set(title="Output tokens over time", xlabel="s from the start", ylabel="tokens")
    first.set(title="Time to first token", xlabel="s", ylabel="share of requests", ylim=(0, 1))
    for axes in (progress, first):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
