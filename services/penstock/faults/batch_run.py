"""Batches of one world: starts their clients, and checks what they, the ledger and the store have."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from penstock.batch.runner.edges import EdgeLinks
from penstock.batch.runner.held import RunnableLine
from penstock.faults.checks.batches import LineRows, check_batches, check_line_charges, check_starts
from penstock.faults.checks.checker import LedgerRow, Violation
from penstock.faults.plan import PlannedRequest, WorldPlan
from penstock.faults.world.clients.batch_clients import BatchTranscript, FoundBatch, audit_batches, run_batch_clients
from penstock.faults.world.stores.batch_disk import BatchDisk
from penstock.faults.world.tenants import api_keys
from penstock.faults.world.world import World

CLIENT_PROCESS = "batchclient"

_REMAINS_QUERY = """
    SELECT (SELECT count(*) FROM chunks), (SELECT count(*) FROM results),
        (SELECT count(*) FROM batches WHERE job_until > {now})
"""
_FILES_QUERY = "SELECT file_id, size_bytes FROM files"


@dataclass
class BatchRun:
    """The batches of one world."""

    plan: WorldPlan
    world: World
    disk: BatchDisk
    transcripts: list[BatchTranscript] = field(init=False)
    found: list[FoundBatch] = field(default_factory=list)
    starts: dict[str, list[float]] = field(default_factory=dict)  # s of the world, by the line's id

    def __post_init__(self) -> None:
        self.transcripts = [BatchTranscript(planned=each) for each in self.plan.batches]

    @property
    def requests(self) -> Iterator[PlannedRequest]:
        """Yield each line as a request, as engines see it."""
        for batch in self.plan.batches:
            for line in batch.lines:
                yield PlannedRequest(
                    starts_at=batch.starts_at,
                    prompt=line.prompt,
                    max_output_tokens=line.max_output_tokens,
                    seed=line.seed,
                    ignore_eos=line.ignore_eos,
                    sends_text=True,
                    crash_token_index=line.crash_token_index,
                )

    @property
    def prompt_lengths(self) -> set[int]:
        return {line.prompt_tokens for batch in self.plan.batches for line in batch.lines}

    @contextmanager
    def recording_starts(self) -> Iterator[None]:
        """Record when a replica hands a line to the stream of an edge. It may be suspended before the frame is sent."""
        start = EdgeLinks.start

        def recorded(links: EdgeLinks, line: RunnableLine, now: float) -> bool:
            self.starts.setdefault(line.line_id, []).append(self.world.now)
            return start(links, line, now)

        with patch.object(EdgeLinks, "start", recorded):
            yield

    def start_clients(self) -> Iterator[asyncio.Task[None]]:
        """Start the process of the clients; none if the world has no batches."""
        if self.plan.batches:
            targets, keys = self.plan.shape.http_addresses, api_keys(self.plan.tenants)
            loop = self.world.add_loop(CLIENT_PROCESS)
            with self.world.running_as(loop):
                yield loop.create_task(run_batch_clients(targets, keys, self.transcripts))

    def start_audit(self) -> Iterator[asyncio.Task[None]]:
        """Start the process that reads all batches and their files at each edge."""
        if self.plan.batches:
            targets, keys = self.plan.shape.http_addresses, api_keys(self.plan.tenants)
            tenants = sorted({each.tenant for each in self.plan.batches})
            loop = self.world.add_loop(CLIENT_PROCESS)
            with self.world.running_as(loop):
                yield loop.create_task(audit_batches(targets, keys, tenants, self.found))

    def remains(self) -> Iterator[Violation]:
        """Yield what batches that have ended have left in the store."""
        if self.plan.batches:
            [(chunks, results, jobs)] = self.disk.query(_REMAINS_QUERY.format(now=self.disk.clock()))
            if chunks or results or jobs:
                text = f"{chunks} chunks, {results} results and {jobs} held jobs"
                yield Violation("leak", f"the store of batches has {text} at rest")

    def violations(self, *, has_faults: bool) -> Iterator[Violation]:
        """Yield the violations at the end, except those of charges."""
        if not self.plan.batches:
            return
        yield from check_batches(self.transcripts, self.found, has_faults=has_faults)
        yield from check_starts(self.transcripts, self.starts)
        sizes = dict(self.disk.query(_FILES_QUERY))
        for file_id, size in sizes.items():
            if len(self.disk.contents.get(file_id, b"")) != size:
                yield Violation("batch", f"{file_id} has not the {size} bytes that its row says")
        if not has_faults and sizes.keys() != self.disk.contents.keys():
            yield Violation("leak", f"contents of no file: {self.disk.contents.keys() - sizes.keys()}")

    def charge_violations(self, tenant: int, rows: Sequence[LedgerRow], *, may_lack_rows: bool) -> Iterator[Violation]:
        """Yield the wrong charges of a tenant. `rows`: its ledger."""
        planned = {each.name: each for each in self.plan.batches}
        found = [
            LineRows(planned[each.name], each) for each in self.found if each.tenant == tenant and each.name in planned
        ]
        lengths = self.prompt_lengths
        of_lines = [row for row in rows if row.reserved_prompt in lengths]
        yield from check_line_charges(found, of_lines, may_lack_rows=may_lack_rows)
