"""Real processes under three times what they can carry: they do what the simulator says, and a refusal is cheap.

What a refusal costs is what more of them cost more: all CPU time of a tier at `FLOOD` times the load, less that at
`LOAD` times, by the refusals that there were more of. Both loads keep the workers full, so that what was let in cancels
out; the SDK's own side is not counted. Beside it stands what grpc.aio itself takes for a refused call, in this run.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import psutil
from rich.console import Console

from penstock.chassis.errors import PenstockError
from penstock.cli.bench.history import OK, History
from penstock.cli.bench.report import Slo, report
from penstock.cli.plan import MeshOptions
from penstock.cli.scorecard.card import Card, Line, at_most, exactly, percentile, told
from penstock.cli.scorecard.floor import Floor, measured_floor
from penstock.cli.scorecard.rig import Rig, rig
from penstock.cli.scorecard.verdicts import residue_lines
from penstock.client import Client, RetryPolicy
from penstock.simulator.arrivals import Poisson
from penstock.simulator.demand import Ask, Drawn
from penstock.simulator.figures import figures_of
from penstock.simulator.lengths import LogNormal
from penstock.simulator.scenario import Queues, Scenario, Schedulers, Targets, Tenant, WorkerKind
from penstock.simulator.simulation import Simulation
from penstock.simulator.sweep import knee
from penstock.worker.engine.step_law import StepLaw

# Slow enough for the host to have most of its time left, whatever is offered.
LAW = StepLaw(base_s=0.03, per_prefill_token_s=0.0001, per_decode_seq_s=0.001)
WORKER = WorkerKind(slots=16, kv_blocks=2_000, law=LAW)
PROMPT = LogNormal(mean=80, sigma=0.5, low=8, high=400)
OUTPUT = LogNormal(mean=40, sigma=0.5, low=4, high=160)
TTFT = 2.0  # s, promised
TENANT = "surge"
LOAD, FLOOD = 3.0, 8.0  # times what FIFO serves; the second shows what more refusals cost
WARM_UP = 10.0  # s; of the queue's predictions too
WITHIN = 10.0  # %
ANSWER = 0.010  # s, P99
COST = 300.0  # us of CPU over all tiers


@dataclass(frozen=True, slots=True, kw_only=True)
class SurgeOptions:
    seconds: float = 40.0  # that count, of each load
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What came of one load."""

    figures: Mapping[str, Any]
    histories: Sequence[History]
    tokens: int  # asked for by those that were good
    cpu: Mapping[str, float]  # s, by tier
    by_edges: float = 0.0  # refusals that edges decided

    @property
    def refused(self) -> list[float]:
        """Return the s until each refusal at the door."""
        return [each.ended - each.started for each in self._overloaded if not each.prompt_tokens]

    @property
    def given_up(self) -> int:
        """Count those that were let in, and refused when their time was over."""
        return sum(bool(each.prompt_tokens) for each in self._overloaded)

    @property
    def _overloaded(self) -> list[History]:
        return [each for each in self.histories if each.outcome == "OVERLOADED"]


async def surge(asked: SurgeOptions, mesh: MeshOptions, console: Console) -> Card:
    world = scenario(asked, mesh)
    limit = await asyncio.to_thread(knee, replace(world, load=1.0, duration=60.0))
    simulated = figures_of(await asyncio.to_thread(Simulation(replace(world, load=LOAD * limit)).run))
    async with rig(mesh, console, settings=settings()) as stage:
        stage.say("warming up")
        addresses = [each.address for each in stage.mesh.plan.of("edge")]
        retries = RetryPolicy(max_attempts=1)
        async with Client(*addresses, api_key=stage.mesh.api_key, retries=retries) as client:
            real = await _offer(stage, client, replace(world, load=LOAD * limit))
            flood = await _offer(stage, client, replace(world, load=FLOOD * limit))
        floor = await measured_floor()
        residue = await stage.residue()
    card = Card(proof="surge", void="" if real.refused else "nobody was refused")
    card.lines += [told("what FIFO serves", limit * rate(world), "requests/s")]
    card.lines += [
        *goodput_lines(real, simulated),
        *refusal_lines(real, flood),
        *floor_lines(floor),
        *residue_lines(residue),
    ]
    return card


def settings() -> tuple[str, ...]:
    worker = {
        "SLOTS": WORKER.slots,
        "KV_BLOCKS": WORKER.kv_blocks,
        "SIM_BASE_S": LAW.base_s,
        "SIM_PER_PREFILL_TOKEN_S": LAW.per_prefill_token_s,
        "SIM_PER_DECODE_SEQ_S": LAW.per_decode_seq_s,
    }
    return (
        f"PENSTOCK_QUEUE_TTFT_STANDARD={TTFT}",
        *(f"PENSTOCK_WORKER_{name}={value}" for name, value in worker.items()),
    )


def scenario(asked: SurgeOptions, mesh: MeshOptions) -> Scenario:
    """The same world for both: as many processes, the same engine, and the very same requests."""
    return Scenario(
        name="surge",
        tenants=(Tenant(name=TENANT, demand=Drawn(Poisson(1.0 * mesh.workers), PROMPT, OUTPUT)),),
        workers=(replace(WORKER, count=mesh.workers),),
        queues=Queues(shards=mesh.queues),
        schedulers=Schedulers(count=mesh.schedulers),
        targets=Targets(ttft=TTFT, tbt=0.2),
        duration=WARM_UP + asked.seconds,
        warm_up=WARM_UP,
        seed=asked.seed,
    )


def rate(world: Scenario) -> float:
    return float(world.worker_count)


async def _offer(stage: Rig, client: Client, world: Scenario) -> Offered:
    """Ask for what the scenario asks for, at its times, and read every answer to its end."""
    [tenant] = world.tenants
    asked = tenant.demand.asks(f"{world.seed}/{tenant.name}", world.load)
    asks = list(takewhile(lambda ask: ask.at < world.duration, asked))
    histories, began, before, by_edges = [], time.monotonic(), _cpu(stage), await stage.total("edge", "refused_here")
    async with asyncio.TaskGroup() as group:
        for number, ask in enumerate(asks):
            await asyncio.sleep(max(0.0, began + ask.at - time.monotonic()))
            histories.append(History(number=number, started=time.monotonic() - began))
            group.create_task(_ask(client, ask, histories[-1], began))
            if number % 20 == 0:
                stage.say(f"{world.load:.1f} times one request/s: {number} of {len(asks)} asked")
    counted = [each for each in histories if each.started >= world.warm_up]
    slo = Slo(ttft=world.targets.ttft, tpot=world.targets.tbt)
    return Offered(
        figures=report(counted, world.duration - world.warm_up, {}, slo),
        histories=histories,
        tokens=sum(asks[each.number].prompt + 2 * each.tokens for each in counted if slo.is_met_by(each)),
        cpu={tier: spent - before[tier] for tier, spent in _cpu(stage).items()},
        by_edges=await stage.total("edge", "refused_here") - by_edges,
    )


async def _ask(client: Client, ask: Ask, history: History, began: float) -> None:
    prompt = [3 + (history.number + place) % 200 for place in range(ask.prompt)]
    answer = client.generate(prompt, max_output_tokens=ask.output, ignore_eos=True, seed=history.number)
    try:
        async with answer:
            async for piece in answer:
                history.take(time.monotonic() - began, piece.first_index, len(piece.token_ids))
        history.end(time.monotonic() - began, OK)
    except PenstockError as error:
        history.prompt_tokens = ask.prompt if answer.is_accepted else 0
        history.end(time.monotonic() - began, error.reason, error.code.name, error.retry_after)


def _cpu(stage: Rig) -> Counter[str]:
    """Return the CPU seconds that the processes of each tier have had, their children's too."""
    spent = Counter[str]()
    for child in stage.mesh.processes.children:
        process = psutil.Process(child.process.pid)
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            spent[child.spec.tier] += times.user + times.system  # type: ignore[assignment]  # s, not counts
    return spent


def goodput_lines(real: Offered, simulated: Mapping[str, Any]) -> list[Line]:
    seconds = real.figures["wall_s"]
    pairs = {
        "requests": (real.figures["goodput_requests_per_s"], simulated["goodput_requests_per_s"]),
        "weighted tokens": (real.tokens / seconds, simulated["goodput_weighted_tokens_per_s"]),
    }
    lines = []
    for name, (measured, predicted) in pairs.items():
        lines += [
            told(f"goodput in {name} at {LOAD:g}x", measured, "/s"),
            told(f"goodput in {name} as simulated", predicted, "/s"),
            at_most(f"goodput in {name} off the simulated", abs(100 * measured / predicted - 100), WITHIN, "%"),
        ]
    firsts = [first for each in real.histories if (first := each.ttft) is not None]
    return [
        *lines,
        told("P99 to the first token", percentile(firsts, 0.99), "s"),
        told("P99 to the first token as simulated", simulated["ttft_s"]["p99"], "s"),
        exactly("requests that failed otherwise than by a refusal", real.figures["failures"], 0),
    ]


def refusal_lines(real: Offered, flood: Offered) -> list[Line]:
    more = max(1, len(flood.refused) - len(real.refused))
    costs = {tier: 1e6 * (spent - real.cpu[tier]) / more for tier, spent in flood.cpu.items()}
    return [
        told(f"refused at {LOAD:g}x", len(real.refused)),
        told(f"refused at {FLOOD:g}x", len(flood.refused)),
        told(f"failed otherwise at {FLOOD:g}x", flood.figures["failures"]),
        told(f"of these by the edge alone, at {LOAD:g}x", 100 * real.by_edges / max(1, len(real.refused)), "%"),
        told(f"of these by the edge alone, at {FLOOD:g}x", 100 * flood.by_edges / max(1, len(flood.refused)), "%"),
        told(f"let in at {LOAD:g}x and refused later", real.given_up),
        exactly("refusals without a Retry-After", real.figures["shed_without_retry_after"], 0),
        told("P50 until a refusal", percentile(real.refused, 0.5), "s"),
        at_most("P99 until a refusal", percentile(real.refused, 0.99), ANSWER, "s"),
        *(told(f"CPU of a refusal, {tier}", cost, "us") for tier, cost in costs.items()),
        at_most("CPU of a refusal, over all tiers", sum(costs.values()), COST, "us"),
    ]


def floor_lines(floor: Floor) -> list[Line]:
    return [
        told("CPU of an empty call that is refused", 1e6 * floor.cpu, "us"),
        told("P99 until an empty call is refused", percentile(floor.waits, 0.99), "s"),
    ]
