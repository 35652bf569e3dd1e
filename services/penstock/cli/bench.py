"""`penstock bench`: against a running mesh, or a mesh of its own for the length of the run."""

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.live import Live

from penstock.bench.history import OK, History
from penstock.bench.load import Lengths, Load
from penstock.bench.plot import plot_runs
from penstock.bench.report import Slo, figures_table, report, summary_lines
from penstock.bench.run import Target, cpu_by_tier, offer, open_api
from penstock.cli.options import find_key, find_target
from penstock.cli.tables import answers, errors
from penstock.cli.up import shown_mesh
from penstock.local_mesh.notes import MeshNote, read_note
from penstock.local_mesh.plan import MeshOptions

HTTP_APIS = ("responses", "chat")
DEFAULT_REQUESTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What `penstock bench` was asked for."""

    api: str
    target: str
    key: str
    model: str
    load: Load
    slo: Slo
    plot: Path | None
    as_json: bool


def asked_for(
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
    """Return the options as the command line gives them; raises BadParameter."""
    load = Load(
        requests=requests or (max(1, round(rate * seconds)) if rate else DEFAULT_REQUESTS),
        concurrency=concurrency,
        rate=rate or 0.0,
        prompt=lengths(prompt_tokens),
        output=lengths(output_tokens),
        cancel_share=cancel_share,
        seed=seed,
    )
    return BenchOptions(load=load, slo=Slo(ttft=slo_ttft, tpot=slo_tpot), **given)


class ProgressLine:
    """One line that lives while the load runs."""

    def __init__(self, requests: int, name: str) -> None:
        self._requests = requests
        self._name = name
        self._started = time.perf_counter()
        self._done, self._ok, self._tokens = 0, 0, 0
        self.live = Live(console=errors, transient=True, refresh_per_second=4)

    def note(self, history: History) -> None:
        self._done += 1
        self._ok += history.outcome == OK
        self._tokens += history.tokens
        spent = time.perf_counter() - self._started
        self.live.update(
            f"{self._name}: {self._done}/{self._requests} requests, {self._done - self._ok} not completed, "
            f"{self._tokens / spent:,.0f} tokens/s, {spent:.0f} s"
        )


async def bench(asked: BenchOptions, mesh: MeshOptions) -> None:
    """One run against a mesh that is given, running here, or started for it."""
    note = read_note(mesh.base_port) if mesh.base_port else None
    async with AsyncExitStack() as stack:
        if not asked.target and note is None:
            note = (await stack.enter_async_context(shown_mesh(mesh))).note()
        figures, histories = await _measure(asked, note, asked.api)
    _show(figures, as_json=asked.as_json)
    if asked.plot:
        plot_runs({asked.api: histories}, asked.plot)
        errors.print(f"plot: {asked.plot}")
    if figures["failures"] or figures["index_errors"]:
        raise click.exceptions.Exit(1)


async def compare_batching(asked: BenchOptions, mesh: MeshOptions) -> None:
    """The same load against continuous and naive batching, each in a mesh of its own."""
    figures: dict[str, dict[str, Any]] = {}
    histories: dict[str, list[History]] = {}
    for batching in ("continuous", "naive"):
        async with shown_mesh(replace(mesh, batching=batching, base_port=0)) as running:
            figures[batching], histories[batching] = await _measure(asked, running.note(), batching)
    if asked.plot:
        plot_runs(histories, asked.plot)
    ratios = {
        "tokens_per_s": figures["continuous"]["output_tokens_per_s"] / figures["naive"]["output_tokens_per_s"],
        "ttft_p50": figures["naive"]["ttft_s"]["p50"] / figures["continuous"]["ttft_s"]["p50"],
        "latency_p50": figures["naive"]["latency_s"]["p50"] / figures["continuous"]["latency_s"]["p50"],
    }
    if asked.as_json:
        answers.print_json(data={**figures, "continuous_over_naive": ratios})
        return
    for batching, each in figures.items():
        answers.print(f"[bold]{batching} batching[/bold]")
        _show(each, as_json=False)
    answers.print(
        f"continuous against naive: {ratios['tokens_per_s']:.2f}x the tokens/s, median TTFT {ratios['ttft_p50']:.2f}x "
        f"and median latency {ratios['latency_p50']:.2f}x shorter"
    )
    if asked.plot:
        errors.print(f"plot: {asked.plot}")


async def _measure(asked: BenchOptions, note: MeshNote | None, name: str) -> tuple[dict[str, Any], list[History]]:
    local = (note.http if asked.api in HTTP_APIS else note.grpc) if note else ""
    address, key = find_target(asked.target, asked.key) if asked.target else (local, find_key(asked.key, note))
    target = Target(api=asked.api, address=address, key=key, model=asked.model)
    line = ProgressLine(asked.load.requests, name)
    async with open_api(target) as api:
        before, started = cpu_by_tier(note), time.perf_counter()
        with line.live:
            histories = await offer(asked.load, api, line.note)
        wall = time.perf_counter() - started
    cpu = {tier: spent - before.get(tier, 0.0) for tier, spent in cpu_by_tier(note).items()}
    return report(histories, wall, cpu, asked.slo), histories


def _show(figures: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        answers.print_json(data=figures)
        return
    for text in summary_lines(figures):
        answers.print(text)
    answers.print(figures_table(figures))


def lengths(text: str) -> Lengths:
    """Parse "64" or "16:128"; raises BadParameter for anything else."""
    low, _, high = text.partition(":")
    try:
        found = Lengths(low=int(low), high=int(high or low))
    except ValueError as error:
        message = f"{text!r} is no length: give tokens as 64 or 16:128"
        raise click.BadParameter(message) from error
    if not 1 <= found.low <= found.high:
        message = f"{text!r} is no range: give two numbers from 1 up, the lower one first"
        raise click.BadParameter(message)
    return found
