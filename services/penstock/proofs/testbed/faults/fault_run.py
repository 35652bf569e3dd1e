"""Runs faults under a load, and puts the lines that all proofs of faults share on a card."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.bench.transcript import TokenTranscript, TranscriptFindings, check_transcripts
from penstock.proofs.card import CardLine, ProofCard, charge_lines, finding_lines, residue_lines
from penstock.proofs.checks.injected_faults import InjectedFault, void_reason
from penstock.proofs.checks.ledger import check_charges
from penstock.proofs.testbed.clients.load import ClosedLoopLoad
from penstock.proofs.testbed.logs import read_ledger, requests_by_ticket
from penstock.proofs.testbed.testbed import Testbed, under_load, wait_for_tokens


@dataclass(slots=True)
class FaultRun:
    testbed: Testbed
    load: ClosedLoopLoad
    baseline: Sequence[TokenTranscript]
    streams: int
    planned: int  # faults
    faults: list[InjectedFault] = field(default_factory=list)
    _tokens_at_last_fault: int = 0

    @property
    def folder(self) -> Path:
        return self.testbed.mesh.folder

    def report_progress(self, text: str) -> None:
        load = self.load
        self.testbed.report_progress(
            f"{text}; {len(self.faults)} of {self.planned} faults, {load.ended_requests} requests done, "
            f"{load.active_requests} active, {load.failed_requests} failed, {load.tokens_received:,} tokens"
        )

    @contextmanager
    def injecting(self, name: str, kind: str) -> Iterator[InjectedFault]:
        """Record the fault that the block injects into the process `name` and ends."""
        fault = InjectedFault(
            name=name,
            kind=kind,
            injected_at=time.time(),
            active_requests=self.load.active_requests,
            tokens_before=self.load.tokens_received - self._tokens_at_last_fault,
        )
        yield fault
        fault.recovered_at = time.time()
        self._tokens_at_last_fault = self.load.tokens_received
        self.faults.append(fault)

    def card(self, proof: str, findings: TranscriptFindings) -> ProofCard:
        card = ProofCard(proof=proof, void_reason=void_reason(self.faults, self.planned, self.streams))
        card.lines += finding_lines(findings)
        card.notes += findings.failure_reasons[:10]
        return card

    def check_all(self) -> TranscriptFindings:
        return check_transcripts(self.load.transcripts, self.baseline)

    def all_charge_lines(self) -> list[CardLine]:
        """Lines for the case that every request is charged exactly; auth must have ended."""
        transcripts = [*self.baseline, *self.load.transcripts]
        return charge_lines(check_charges(transcripts, read_ledger(self.folder), requests_by_ticket(self.folder)))


@asynccontextmanager
async def fault_run(
    testbed: Testbed, load: ClosedLoopLoad, baseline: Sequence[TokenTranscript], streams: int, planned: int
) -> AsyncIterator[FaultRun]:
    """Offer `load` while the block injects `planned` faults, from the first tokens on."""
    run = FaultRun(testbed, load, baseline, streams, planned)
    async with under_load(load):
        await wait_for_tokens(load, streams)
        yield run


def add_residue(card: ProofCard, residue: dict[str, float]) -> None:
    card.lines += residue_lines(residue)
    card.notes += residue
