"""One batch on a mesh of processes: it is followed, its processes are sampled, and its files are read in the end."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.client.batches import BatchesClient
from penstock.proofs.batches.lines import OutputFindings
from penstock.proofs.batches.samples import MeshSamples
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.testbed.testbed import POLL_INTERVAL_S, Testbed
from penstock.v1 import batches_pb2 as pb

FOLLOW_INTERVAL_S = 0.5
PATIENCE_S = 180.0  # for one call; longer than the store is away
STALL_S = 300.0  # without a line that ends
RUNNING = (pb.BATCH_STATUS_VALIDATING, pb.BATCH_STATUS_IN_PROGRESS)
ENDED = (
    pb.BATCH_STATUS_COMPLETED,
    pb.BATCH_STATUS_FAILED,
    pb.BATCH_STATUS_EXPIRED,
    pb.BATCH_STATUS_CANCELLED,
)


@dataclass(slots=True)
class BatchRun:
    """`batch` is the latest look at it."""

    testbed: Testbed
    client: BatchesClient
    samples: MeshSamples
    batch: pb.Batch
    name: str  # for the progress line
    faults: list[InjectedFault] = field(default_factory=list)
    lines_ended_during: Counter[str] = field(default_factory=Counter)  # by the kind of the fault
    started_at: float = field(default_factory=time.time)  # Unix s, as of the next
    ended_at: float = 0.0
    _ended_at_last_fault: int = 0  # lines

    @property
    def lines_ended(self) -> int:
        return self.batch.lines.completed + self.batch.lines.failed

    @property
    def seconds(self) -> float:
        return self.ended_at - self.started_at

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the batch during the block. The block waits for its end by `wait_ended`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            yield

    async def wait_ended(self) -> None:
        while not self.ended_at:  # noqa: ASYNC110  # the event happens in another process
            await asyncio.sleep(POLL_INTERVAL_S)

    async def wait_lines(self, lines: int) -> None:
        """Wait until so many lines have ended, or the batch has."""
        while self.lines_ended < lines and not self.ended_at:  # noqa: ASYNC110  # the event happens in another process
            await asyncio.sleep(POLL_INTERVAL_S)

    async def runs_until(self, due_at: float) -> bool:
        """Wait until then, in monotonic s. Return whether the batch still has lines without a result."""
        while self.batch.status in RUNNING:
            if time.monotonic() >= due_at:
                return True
            await asyncio.sleep(POLL_INTERVAL_S)
        return False

    @contextmanager
    def injecting(self, name: str, kind: str) -> Iterator[InjectedFault]:
        """Record the fault that the block injects and ends. Its requests and tokens are lines here."""
        ended = self.lines_ended
        fault = InjectedFault(
            name=name,
            kind=kind,
            injected_at=time.time(),
            active_requests=self.batch.lines.total - ended,
            tokens_before=ended - self._ended_at_last_fault,
        )
        self._ended_at_last_fault = ended
        yield fault
        fault.recovered_at = time.time()
        self.lines_ended_during[kind] += self.lines_ended - ended
        self.faults.append(fault)

    async def read_output(self) -> OutputFindings:
        """Download the files of the batch, which has ended, and check their rows."""
        findings = OutputFindings(self.batch.id, self.batch.lines.total)
        for file_id, is_error in ((self.batch.output_file_id, False), (self.batch.error_file_id, True)):
            if not file_id:
                continue
            path = self.testbed.mesh.folder / f"{file_id}.jsonl"
            with path.open("wb") as file:
                async for content in self.client.read(file_id):
                    file.write(content)
            await asyncio.to_thread(_read_rows, findings, path, is_error)
        return findings

    async def _follow(self) -> None:
        changed_at = time.monotonic()
        while not self.ended_at:
            await asyncio.sleep(FOLLOW_INTERVAL_S)
            before = self.lines_ended, self.batch.status
            self.batch = await self.client.find(self.batch.id)
            await self.samples.take()
            counts = self.batch.lines
            self.testbed.report_progress(
                f"{self.name}: {self.lines_ended:,} of {counts.total:,} lines, {counts.failed:,} failed, "
                f"{len(self.faults)} faults, {pb.BatchStatus.Name(self.batch.status)}"
            )
            if self.batch.status in ENDED:
                self.ended_at = time.time()
            if (self.lines_ended, self.batch.status) != before:
                changed_at = time.monotonic()
            elif time.monotonic() - changed_at > STALL_S:
                message = f"no line of the batch has ended for {STALL_S:g} s"
                raise TimeoutError(message)


def client_of(testbed: Testbed) -> BatchesClient:
    """Return a client of all edges, which repeats calls for longer than an outage lasts."""
    addresses = [each.address for each in testbed.mesh.plan.processes_of("edge")]
    return BatchesClient(*addresses, api_key=testbed.mesh.api_key, patience=PATIENCE_S)


def _read_rows(findings: OutputFindings, path: Path, is_error: bool) -> None:
    with path.open("rb") as file:
        findings.read(file, is_error=is_error)
    path.unlink()
