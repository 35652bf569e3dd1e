"""Clocks of real processes that are wrong or step change neither goodput nor the share of rejections.

One mesh receives the same overload for each case: with true clocks, with a process that starts with a wrong Unix time,
and with a process whose Unix time steps under load.
"""

import asyncio
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_most, exactly, reported
from penstock.proofs.live.overload.surge import SurgeOptions, mesh_settings, offer_load, open_surge_driver, scenario
from penstock.proofs.live.overload.surge_lines import JUDGED_API, MAX_CLIENT_LAG_S, OVERLOAD, LoadResult
from penstock.proofs.testbed.faults.fake_clocks import FakeClocks
from penstock.proofs.testbed.faults.fault_run import add_residue
from penstock.proofs.testbed.testbed import Testbed, open_testbed
from penstock.simulator.capacity_plan import knee_load
from penstock.simulator.scenario import Scenario

MAX_DEVIATION_PERCENT = 5.0  # %
WARM_UP_S = 6.0  # s of each load that are not judged
STEP_AT_SHARE = 0.3  # of a load, at which the clock steps


@dataclass(frozen=True, slots=True)
class ClockCase:
    """An offset of Unix time for the last process of a tier."""

    tier: str
    offset_s: float
    is_step: bool = False  # under load; otherwise the process restarts with the offset

    @property
    def label(self) -> str:
        kind = "steps" if self.is_step else "starts"
        return f"{self.tier} {kind} {abs(self.offset_s):g} s {'behind' if self.offset_s < 0 else 'ahead'}"


CASES = (
    ClockCase("edge", -0.6),
    ClockCase("edge", -5.0),
    ClockCase("edge", 5.0),
    ClockCase("worker", 601.0, is_step=True),
    ClockCase("queue", 61.0, is_step=True),
    ClockCase("queue", -3_600.0, is_step=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClocksOptions:
    seconds: float = 20.0  # of each load that are judged
    seed: int = 0
    cases: Sequence[ClockCase] = CASES


async def clocks(options: ClocksOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    own = scenario(SurgeOptions(seconds=options.seconds, seed=options.seed), mesh)
    world = replace(own, duration=WARM_UP_S + options.seconds, warm_up=WARM_UP_S)
    load = OVERLOAD * await asyncio.to_thread(knee_load, replace(world, load=1.0, duration=60.0))
    results: dict[ClockCase, LoadResult] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-clocks-") as folder:
        fake_clocks = FakeClocks(Path(folder))
        async with open_testbed(mesh, console, settings=mesh_settings(), transform_plan=fake_clocks.insert) as testbed:
            await _offer(testbed, replace(world, duration=WARM_UP_S, warm_up=0.0), load)
            before = await _offer(testbed, world, load)
            for case in options.cases:
                testbed.report_progress(case.label)
                results[case] = await _run_case(testbed, fake_clocks, case, world, load)
            after = await _offer(testbed, world, load)
            residue = await testbed.residue()
    card = ProofCard(proof="clocks", void_reason=_void_reason([before, *results.values(), after]))
    card.lines += _true_clock_lines(before, after)
    for case, result in results.items():
        card.lines += case_lines(case, result, before, after)
    add_residue(card, residue)
    return card


async def _run_case(
    testbed: Testbed, fake_clocks: FakeClocks, case: ClockCase, world: Scenario, load: float
) -> LoadResult:
    process = testbed.mesh.plan.processes_of(case.tier)[-1].name
    if case.is_step:
        when = STEP_AT_SHARE * world.duration
        timer = asyncio.get_running_loop().call_later(when, fake_clocks.set_offset, process, case.offset_s)
        try:
            return await _offer(testbed, world, load)
        finally:
            timer.cancel()
            fake_clocks.set_offset(process, 0.0)  # a step back, which the next load sees as well
    fake_clocks.set_offset(process, case.offset_s)
    await _restart(testbed, process)
    result = await _offer(testbed, world, load)
    fake_clocks.set_offset(process, 0.0)
    await _restart(testbed, process)
    return result


async def _restart(testbed: Testbed, process: str) -> None:
    child = testbed.mesh.processes.named(process)
    child.process.send_signal(signal.SIGTERM)
    await child.process.wait()
    await testbed.mesh.restart(process)


async def _offer(testbed: Testbed, world: Scenario, load: float) -> LoadResult:
    async with open_surge_driver(testbed, JUDGED_API) as driver:
        return await offer_load(testbed, driver, world, load)


def _void_reason(results: Sequence[LoadResult]) -> str:
    if any(not each.rejection_latencies for each in results):
        return "a load had no rejection"
    lag = max(each.client_lag_s for each in results)
    return f"the clients sent requests {lag:.1f} s too late" if lag > MAX_CLIENT_LAG_S else ""


def _true_clock_lines(before: LoadResult, after: LoadResult) -> list[CardLine]:
    return [
        line
        for name, result in (("before", before), ("after", after))
        for line in (
            reported(f"true clocks {name}: goodput", goodput(result), "requests/s"),
            reported(f"true clocks {name}: rejected", rejected_percent(result), "%"),
        )
    ]


def case_lines(case: ClockCase, result: LoadResult, before: LoadResult, after: LoadResult) -> list[CardLine]:
    """The deviations from the mean of the loads with true clocks."""
    usual_goodput = (goodput(before) + goodput(after)) / 2
    usual_rejected = (rejected_percent(before) + rejected_percent(after)) / 2
    return [
        at_most(
            f"{case.label}: goodput lower than with true clocks",
            100 * (1 - goodput(result) / usual_goodput),
            MAX_DEVIATION_PERCENT,
            "%",
        ),
        at_most(
            f"{case.label}: rejected share, deviation",
            abs(100 * rejected_percent(result) / usual_rejected - 100),
            MAX_DEVIATION_PERCENT,
            "%",
        ),
        exactly(f"{case.label}: failed otherwise", result.figures["failures"], 0),
    ]


def goodput(result: LoadResult) -> float:
    return float(result.figures["goodput_requests_per_s"])


def rejected_percent(result: LoadResult) -> float:
    return 100 * len(result.rejection_latencies) / len(result.transcripts)
