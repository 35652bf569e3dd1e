"""`penstock bench`: offers load to a running mesh, or to a mesh that is started for the run."""

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.live import Live

from penstock.bench.drivers.driver import HTTP_APIS, open_driver
from penstock.bench.load import BenchLoad, LengthRange
from penstock.bench.plot import plot_runs
from penstock.bench.report import Slo, figures_table, report_of, summary_lines
from penstock.bench.run import cpu_by_tier, offer_load
from penstock.bench.transcript import OK, Transcript
from penstock.cli.options import find_key, find_target
from penstock.cli.tables import stderr_console, stdout_console
from penstock.cli.up import mesh_with_status
from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.state import MeshState, read_state

DEFAULT_REQUESTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of `penstock bench`."""

    api: str
    target: str
    key: str
    load: BenchLoad
    slo: Slo
    plot: Path | None
    as_json: bool


def bench_options(
    *,
    concurrency: int,
    requests: int | None,
    rate: float | None,
    seconds: float,
    prompt_tokens: str,
    output_tokens: str,
    cancel_share: float,
    seed: int,
    slo_ttft: float,
    slo_tpot: float,
    **given: Any,
) -> BenchOptions:
    """Convert the options of the command line; raises BadParameter."""
    load = BenchLoad(
        requests=requests or (max(1, round(rate * seconds)) if rate else DEFAULT_REQUESTS),
        concurrency=concurrency,
        rate=rate or 0.0,
        prompt_lengths=parse_lengths(prompt_tokens),
        output_lengths=parse_lengths(output_tokens),
        cancel_share=cancel_share,
        seed=seed,
    )
    return BenchOptions(load=load, slo=Slo(ttft=slo_ttft, tpot=slo_tpot), **given)


class ProgressLine:
    """One progress line, updated while the load runs."""

    def __init__(self, requests: int, name: str) -> None:
        self._requests = requests
        self._name = name
        self._started = time.perf_counter()
        self._done, self._ok, self._tokens = 0, 0, 0
        self.live = Live(console=stderr_console, transient=True, refresh_per_second=4)

    def record(self, transcript: Transcript) -> None:
        self._done += 1
        self._ok += transcript.outcome == OK
        self._tokens += transcript.tokens
        elapsed_s = time.perf_counter() - self._started
        self.live.update(
            f"{self._name}: {self._done}/{self._requests} requests, {self._done - self._ok} not completed, "
            f"{self._tokens / elapsed_s:,.0f} tokens/s, {elapsed_s:.0f} s"
        )


async def bench(options: BenchOptions, mesh: MeshOptions) -> None:
    """Run the load once: against the target, the mesh that runs here, or a mesh started for the run."""
    state = read_state(mesh.base_port) if mesh.base_port else None
    async with AsyncExitStack() as stack:
        if not options.target and state is None:
            state = (await stack.enter_async_context(mesh_with_status(mesh))).state()
        figures, transcripts = await _measure(options, state, options.api)
    _show(figures, as_json=options.as_json)
    if options.plot:
        plot_runs({options.api: transcripts}, options.plot)
        stderr_console.print(f"plot: {options.plot}")
    if figures["failures"] or figures["index_errors"]:
        raise click.exceptions.Exit(1)


async def compare_batching(options: BenchOptions, mesh: MeshOptions) -> None:
    """Run the same load with continuous and with static batching, each in its own mesh."""
    figures: dict[str, dict[str, Any]] = {}
    transcripts: dict[str, list[Transcript]] = {}
    for batching in ("continuous", "static"):
        async with mesh_with_status(replace(mesh, batching=batching, base_port=0)) as running:
            figures[batching], transcripts[batching] = await _measure(options, running.state(), batching)
    if options.plot:
        plot_runs(transcripts, options.plot)
    ratios = {
        "tokens_per_s": figures["continuous"]["output_tokens_per_s"] / figures["static"]["output_tokens_per_s"],
        "ttft_p50": figures["static"]["ttft_s"]["p50"] / figures["continuous"]["ttft_s"]["p50"],
        "latency_p50": figures["static"]["latency_s"]["p50"] / figures["continuous"]["latency_s"]["p50"],
    }
    if options.as_json:
        stdout_console.print_json(data={**figures, "continuous_over_static": ratios})
        return
    for batching, each in figures.items():
        stdout_console.print(f"[bold]{batching} batching[/bold]")
        _show(each, as_json=False)
    stdout_console.print(
        f"continuous against static: {ratios['tokens_per_s']:.2f}x the tokens/s, median TTFT {ratios['ttft_p50']:.2f}x "
        f"and median latency {ratios['latency_p50']:.2f}x shorter"
    )
    if options.plot:
        stderr_console.print(f"plot: {options.plot}")


async def _measure(
    options: BenchOptions, state: MeshState | None, label: str
) -> tuple[dict[str, Any], list[Transcript]]:
    local = (state.http if options.api in HTTP_APIS else state.grpc) if state else ""
    address, key = find_target(options.target, options.key) if options.target else (local, find_key(options.key, state))
    line = ProgressLine(options.load.requests, label)
    async with open_driver(options.api, [address], key) as driver:
        before, started = cpu_by_tier(state), time.perf_counter()
        with line.live:
            transcripts = await offer_load(options.load, driver, line.record)
        wall = time.perf_counter() - started
    cpu = {tier: used - before.get(tier, 0.0) for tier, used in cpu_by_tier(state).items()}
    return report_of(transcripts, wall, cpu, options.slo), transcripts


def _show(figures: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        stdout_console.print_json(data=figures)
        return
    for text in summary_lines(figures):
        stdout_console.print(text)
    stdout_console.print(figures_table(figures))


def parse_lengths(text: str) -> LengthRange:
    """Parse "64" or "16:128"; raises BadParameter for anything else."""
    low, _, high = text.partition(":")
    try:
        lengths = LengthRange(low=int(low), high=int(high or low))
    except ValueError as error:
        message = f"{text!r} is not a length: give tokens as 64 or 16:128"
        raise click.BadParameter(message) from error
    if not 1 <= lengths.low <= lengths.high:
        message = f"{text!r} is not a range: give two numbers from 1 up, the lower one first"
        raise click.BadParameter(message)
    return lengths
