"""Each line of a batch is answered and charged exactly once under faults, and interactive load beside it is as fast.

A batch runs on simulated workers while processes of every tier are killed, one of its replicas stands still, and its
store is away. A second batch of the same file is cancelled. On another mesh, whose workers are slower than the machine,
a batch runs beside interactive load.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rich.console import Console

from penstock.client.batches import BatchesClient
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.batches.beside import interactive_beside
from penstock.proofs.batches.faults import MIN_KILLS, SIGKILL, SIGSTOP, STORE_AWAY, inject_faults
from penstock.proofs.batches.lines import ENDPOINT, MIN_TOKENS, OutputFindings, write_lines
from penstock.proofs.batches.run import BatchRun, client_of
from penstock.proofs.batches.samples import MeshSamples
from penstock.proofs.card import CardLine, ProofCard, at_least, at_most, exactly, fault_summary, reported
from penstock.proofs.checks.line_charges import LineChargeFindings, check_line_charges, explain_examples
from penstock.proofs.testbed.faults.fault_run import add_residue
from penstock.proofs.testbed.faults.kills import wait_settled
from penstock.proofs.testbed.logs import read_line_charges
from penstock.proofs.testbed.testbed import Testbed, open_testbed
from penstock.v1 import batches_pb2 as pb

SETTINGS = ("PENSTOCK_EDGE_LOG_LEVEL=warning", "PENSTOCK_WORKER_LOG_LEVEL=warning")  # not two lines for each answer
BATCHES = 2  # processes of the tier, so that one takes the lines of the other; a SQLite file has one
OUTAGES = 2  # faults that last: a replica stands still, and the store is away
CANCEL_SHARE = 0.05  # of the lines, which have ended when the second batch is cancelled
MAX_START_AFTER_CANCEL_S = 1.0
MAX_REPEATED_SHARE = 1.0  # % of the tokens
MAX_MEMORY_MIB = 200.0
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    lines: int = 200_000
    tokens: int = 8  # of an answer, at most
    kills: int | None = None  # None: until all lines have ended
    every: float = 10.0  # s
    seconds: float = 60.0  # of each outage, and of the interactive load
    seed: int = 0

    @property
    def planned_faults(self) -> int:
        return OUTAGES + (MIN_KILLS if self.kills is None else self.kills)

    def __post_init__(self) -> None:
        if self.tokens < MIN_TOKENS:
            raise ValueError(f"tokens must be at least {MIN_TOKENS}")


@dataclass(frozen=True, slots=True)
class EndedBatch:
    """A batch that has ended, with the rows of its output."""

    run: BatchRun
    output: OutputFindings
    charges: LineChargeFindings
    examples: list[str]  # of lines with a wrong charge


async def batch(options: BatchOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    card = await run_batches(options, mesh, console)
    card.lines += await interactive_beside(options.seconds, options.seed, mesh, console)
    return card


async def run_batches(options: BatchOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    """Run one batch under faults, and cancel another one."""
    own = replace(mesh, batches=max(BATCHES if mesh.store == "postgres" else 1, mesh.batches))
    async with open_testbed(own, console, settings=SETTINGS) as testbed, client_of(testbed) as client:
        path = testbed.mesh.folder / "lines.jsonl"
        await asyncio.to_thread(write_lines, path, options.lines, options.tokens)
        testbed.report_progress("uploading the lines")
        file_id = (await client.upload(path)).id
        faulted = await _start(testbed, client, file_id, "under faults")
        async with faulted.following():
            await inject_faults(
                faulted, kills=options.kills, every_s=options.every, outage_s=options.seconds, seed=options.seed
            )
            await faulted.wait_ended()
        computed = faulted.samples.computed
        await wait_settled(testbed)  # the last kill may have been of auth, which creates need
        cancelled = await _start(testbed, client, file_id, "to be cancelled")
        async with cancelled.following():
            await cancelled.wait_lines(round(CANCEL_SHARE * options.lines))
            await client.cancel(cancelled.batch.id)
            await cancelled.wait_ended()
        outputs = [await each.read_output() for each in (faulted, cancelled)]
        residue = await testbed.residue()
    first, second = (_with_charges(*each) for each in zip((faulted, cancelled), outputs, strict=True))
    card = ProofCard(proof="batch", void_reason=void_reason(faulted, options.planned_faults))
    card.lines += [*run_lines(faulted), *output_lines(first), *charge_lines(first)]
    card.lines += repeat_lines(first, computed.generated)
    card.lines += [*fault_lines(faulted), *cancel_lines(second)]
    add_residue(card, residue)
    codes = {**first.output.error_codes, **second.output.error_codes}
    card.notes += [fault_summary(faulted.faults), *(f"{code}: {count} error rows" for code, count in codes.items())]
    card.notes += [*first.examples, *second.examples]
    return card


async def _start(testbed: Testbed, client: BatchesClient, file_id: str, name: str) -> BatchRun:
    samples = MeshSamples(testbed)
    await samples.take()
    samples.start()
    request = pb.CreateBatchRequest(input_file_id=file_id, endpoint=ENDPOINT)
    return BatchRun(testbed, client, samples, await client.create(request), name)


def _with_charges(run: BatchRun, output: OutputFindings) -> EndedBatch:
    """The mesh must have ended, because auth locks its ledger."""
    folder = run.testbed.mesh.folder
    findings = check_line_charges(run.batch.id, output.prompt_tokens, output.output_tokens, read_line_charges(folder))
    return EndedBatch(run, output, findings, list(explain_examples(findings, read_line_charges(folder))))


def void_reason(run: BatchRun, planned: int) -> str:
    """Return the reason why the run under faults proves nothing; empty if it is valid."""
    if len(run.faults) < planned:
        return f"only {len(run.faults)} of {planned} faults came before all lines had ended: give more lines"
    return next((f"{each.name} {each.kind} had no effect" for each in run.faults if not each.has_taken_effect), "")


def run_lines(run: BatchRun) -> Iterator[CardLine]:
    lines = max(1, run.batch.lines.total)
    yield reported("lines", run.batch.lines.total)
    yield reported("lines per second, faults included", lines / run.seconds, "/s")
    for tier, seconds in sorted(run.samples.cpu_s.items()):
        yield reported(f"CPU of {tier} for a line", 1e6 * seconds / lines, "us")
    peak = max(run.samples.peak_bytes.values(), default=0)
    yield at_most("peak memory of a batch process", peak / MIB, MAX_MEMORY_MIB, "MiB")


def output_lines(ended: EndedBatch) -> list[CardLine]:
    output = ended.output
    return [
        exactly("batches that did not complete", ended.run.batch.status != pb.BATCH_STATUS_COMPLETED, 0),
        exactly("lines without a row", output.missing, 0),
        exactly("rows in the error file", output.errors, 0),
        *_row_lines("", output),
    ]


def _row_lines(of: str, output: OutputFindings) -> list[CardLine]:
    return [
        exactly(f"rows out of the order of their lines{of}", output.misplaced, 0),
        exactly(f"rows of lines that have one already{of}", output.doubled, 0),
        exactly(f"rows with the id of another line{of}", output.foreign, 0),
        exactly(f"answers that differ from others to the same prompt{of}", output.changed, 0),
    ]


def charge_lines(ended: EndedBatch, of: str = "") -> list[CardLine]:
    charges = ended.charges
    return [
        reported(f"tokens of the answers{of}", charges.answered_tokens),
        reported(f"tokens charged{of}", charges.charged_tokens),
        exactly(f"lines charged for more than their answer{of}", charges.overcharged, 0),
        exactly(f"lines charged for less than their answer{of}", charges.undercharged, 0),
    ]


def repeat_lines(ended: EndedBatch, generated: float) -> list[CardLine]:
    repeated = max(0.0, generated - ended.charges.answered_tokens)
    return [
        reported("requests for lines beyond one each", ended.charges.requests - ended.run.batch.lines.total),
        at_most("tokens generated twice", 100 * repeated / max(1.0, generated), MAX_REPEATED_SHARE, "%"),
    ]


def fault_lines(run: BatchRun) -> list[CardLine]:
    replicas = len(run.testbed.mesh.plan.processes_of("batch"))
    return [
        reported("processes killed", sum(each.kind == SIGKILL for each in run.faults)),
        at_least("lines that ended while a replica stood still", run.lines_ended_during[SIGSTOP], replicas > 1),
        reported("lines that ended while the store was away", run.lines_ended_during[STORE_AWAY]),
    ]


def cancel_lines(ended: EndedBatch) -> list[CardLine]:
    run, output, of = ended.run, ended.output, " (cancelled batch)"
    cancelled_at = run.batch.cancel_time.ToNanoseconds() / 1e9
    return [
        exactly("cancels that did not end their batch", run.batch.status != pb.BATCH_STATUS_CANCELLED, 0),
        at_least("lines that had no result at the cancel", output.missing, 1),
        at_most(
            "last start of a line after the cancel",
            ended.charges.last_start - cancelled_at,
            MAX_START_AFTER_CANCEL_S,
            "s",
        ),
        reported("time until the cancelled batch had its output", run.ended_at - cancelled_at, "s"),
        exactly("rows missing for lines that had ended", run.lines_ended - output.rows, 0),
        *_row_lines(of, output),
        *charge_lines(ended, of),
    ]
