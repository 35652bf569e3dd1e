"""Rolling update of a model's weights under load, while processes of every tier are killed.

The workers are replaced one after the other by workers with other weights under the same name. A worker that was killed
before its replacement restarts with its former weights; a worker that is killed while it drains is replaced at once.
Every answer is compared with that of the old and of the new weights, and must be one of them to the last token.
"""

import asyncio
import random
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from penstock.bench.transcript import TokenTranscript, check_transcripts
from penstock.local_mesh.plan import MeshOptions, ProcessSpec
from penstock.local_mesh.processes import ChildProcess
from penstock.proofs.card import (
    CardLine,
    ProofCard,
    charge_lines,
    exactly,
    fault_summary,
    finding_lines,
    pause_lines,
    reported,
)
from penstock.proofs.checks.injected_faults import void_reason
from penstock.proofs.checks.ledger import LedgerCharge, check_charges
from penstock.proofs.checks.model_versions import split_by_version
from penstock.proofs.testbed.changed_weights import copy_with_other_weights
from penstock.proofs.testbed.clients.load import ClosedLoopLoad, answer_all, run_baseline
from penstock.proofs.testbed.faults.fault_run import FaultRun, add_residue, fault_run
from penstock.proofs.testbed.faults.kills import kill_and_restart, kill_times, random_victims, wait_settled
from penstock.proofs.testbed.logs import read_ledger, requests_by_ticket
from penstock.proofs.testbed.testbed import Testbed, open_testbed

SLOTS_PER_WORKER = 8
SETTINGS = (f"PENSTOCK_WORKER_SLOTS={SLOTS_PER_WORKER}", "PENSTOCK_WORKER_SIM_BASE_S=0.025")
LOAD_SHARE = 0.8  # of the capacity of all workers
CATALOG_SIZE = 24
MODEL_REPLACED = "MODEL_REPLACED"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions:
    streams: int = 0  # 0: at 0.8 of capacity
    kills: int = 20
    every: float = 3.0  # s
    tokens: int = 160  # of an answer, at most
    seed: int = 0


class RollingUpdate:
    """Replaces the workers of a mesh, each after its share of the kills."""

    def __init__(self, testbed: Testbed, model: Path, kills: int) -> None:
        self._testbed = testbed
        self._model = model
        self._names = [each.name for each in testbed.mesh.plan.processes_of("worker")]
        self._kills_each = kills / (len(self._names) + 1)
        self._replacements: dict[str, asyncio.Task[None]] = {}
        self._starting: set[str] = set()
        self.old_gone_at = float("inf")  # Unix s at which the last old worker began to drain

    def begin_due(self, kills: int) -> None:
        """Begin the next replacement if its turn has come after `kills`."""
        begun = len(self._replacements)
        if begun < len(self._names) and kills >= self._kills_each * (begun + 1) and not self._is_replacing:
            name = self._names[begun]
            self._replacements[name] = asyncio.create_task(self._replace(name))
            self.old_gone_at = time.time() if begun + 1 == len(self._names) else self.old_gone_at

    def is_starting(self, name: str) -> bool:
        return name in self._starting

    def replacement_of(self, name: str) -> asyncio.Task[None] | None:
        """Return the replacement of a worker if it has begun and not ended."""
        task = self._replacements.get(name)
        return None if task is None or task.done() else task

    async def finish(self) -> None:
        for name in self._names[len(self._replacements) :]:
            self._replacements[name] = asyncio.create_task(self._replace(name))
            await self._replacements[name]
        await asyncio.gather(*self._replacements.values())

    @property
    def _is_replacing(self) -> bool:
        return any(not each.done() for each in self._replacements.values())

    async def _replace(self, name: str) -> None:
        old = self._testbed.mesh.processes.named(name)
        old.process.send_signal(signal.SIGTERM)
        await old.process.wait()
        self._starting.add(name)
        await self._testbed.mesh.restart(name, spec=self._with_new_weights(old.spec))
        self._starting.discard(name)

    def _with_new_weights(self, spec: ProcessSpec) -> ProcessSpec:
        return replace(spec, environment={**spec.environment, "PENSTOCK_WORKER_MODEL": str(self._model)})


async def rollout(options: RolloutOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    streams = options.streams or round(LOAD_SHARE * SLOTS_PER_WORKER * mesh.workers)
    with tempfile.TemporaryDirectory(prefix="penstock-rollout-") as folder:
        model = copy_with_other_weights(mesh.model, mesh.engine, Path(folder))
        async with open_testbed(mesh, console, settings=SETTINGS) as testbed:
            testbed.report_progress("answering every request with the old weights")
            requests, old = await run_baseline(testbed.client, CATALOG_SIZE, options.tokens, options.seed)
            load = ClosedLoopLoad(testbed.driver, requests, streams, options.seed)
            async with fault_run(testbed, load, old, streams, options.kills) as run:
                update = RollingUpdate(testbed, model, options.kills)
                await _kill_during(run, update, options)
                testbed.report_progress("replacing the last workers")
                await update.finish()
            testbed.report_progress("answering every request with the new weights")
            new = await answer_all(testbed.client, requests)
            residue = await testbed.residue()
    card = ProofCard(proof="rollout", void_reason=void_reason(run.faults, options.kills, streams))
    answers = RolloutAnswers(old, new, load.transcripts, update.old_gone_at)
    card.lines += version_lines(answers)
    card.lines += rollout_charge_lines(answers, read_ledger(run.folder), requests_by_ticket(run.folder))
    card.lines += [replace(line, goal="", is_met=True) for line in pause_lines(load.transcripts, old, run.faults)]
    add_residue(card, residue)
    card.notes.append(fault_summary(run.faults))
    card.notes += [f"{each.request_id}: {each.failure_text}" for each in load.transcripts if each.failure_text][:10]
    return card


async def _kill_during(run: FaultRun, update: RollingUpdate, options: RolloutOptions) -> None:
    victims = random_victims(run.testbed, random.Random(options.seed))
    async for _ in kill_times(run, options.every):
        update.begin_due(len(run.faults))
        victim = next(each for each in victims if not update.is_starting(each.spec.name))
        if replacement := update.replacement_of(victim.spec.name):
            await _kill_draining(run, victim, replacement)
        else:
            await kill_and_restart(run, victim)


async def _kill_draining(run: FaultRun, victim: ChildProcess, replacement: asyncio.Task[None]) -> None:
    """Kill a worker that drains; it is replaced at once."""
    with run.injecting(victim.spec.name, "SIGKILL") as fault:
        victim.process.kill()
        fault.has_taken_effect = await victim.process.wait() == -signal.SIGKILL
        await replacement
    await wait_settled(run.testbed)


@dataclass(frozen=True, slots=True)
class RolloutAnswers:
    """What the clients received: `old` and `new` are the answers of the weights without faults."""

    old: Sequence[TokenTranscript]
    new: Sequence[TokenTranscript]
    transcripts: Sequence[TokenTranscript]  # during the update
    old_gone_at: float  # Unix s at which the last old worker began to drain

    @property
    def replaced(self) -> list[TokenTranscript]:
        """Answers that could not be completed: after a fault, no worker had the weights that began them any more."""
        return [
            each for each in self.transcripts if each.outcome == MODEL_REPLACED and each.ended_at >= self.old_gone_at
        ]

    @property
    def judged(self) -> list[TokenTranscript]:
        """All other answers of the update; each must be complete."""
        replaced = {each.request_id for each in self.replaced}
        return [each for each in self.transcripts if each.request_id not in replaced]


def version_lines(answers: RolloutAnswers) -> list[CardLine]:
    old, new = answers.old, answers.new
    versions, partial = split_by_version(answers.judged, old, new), split_by_version(answers.replaced, old, new)
    findings = check_transcripts(versions.old, old)
    findings.add(check_transcripts(versions.new, new))
    mixed = check_transcripts(partial.old, old).changed + check_transcripts(partial.new, new).changed
    return [
        *finding_lines(findings),
        reported("answers of the old weights", len(versions.old)),
        reported("answers of the new weights", len(versions.new)),
        reported("answers that ended because no worker had their weights any more", len(answers.replaced)),
        exactly("of their tokens, of other weights than the first", mixed, 0),
    ]


def rollout_charge_lines(
    answers: RolloutAnswers, charges: Sequence[LedgerCharge], request_by_ticket: Mapping[str, str]
) -> list[CardLine]:
    """Exact charges of complete answers; an answer that the update ended may be charged less than its client saw."""
    ended = {each.request_id for each in answers.replaced}
    rows: tuple[list[LedgerCharge], list[LedgerCharge]] = ([], [])
    for row in charges:
        rows[request_by_ticket.get(row.ticket_id, "") in ended].append(row)
    complete = check_charges([*answers.old, *answers.judged, *answers.new], rows[False], request_by_ticket)
    partial = check_charges(answers.replaced, rows[True], request_by_ticket)
    return [
        *charge_lines(complete),
        exactly("ended by the update: tokens charged beyond those seen", partial.overcharged_tokens, 0),
    ]
