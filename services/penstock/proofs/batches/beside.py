"""Interactive load beside a batch that has more lines than the workers can run, and the same load alone."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from rich.console import Console

from penstock.bench.load import BenchLoad, BenchRequest, LengthRange
from penstock.bench.report import Slo
from penstock.bench.run import send_at_times
from penstock.bench.statistics import quantile
from penstock.bench.transcript import Transcript
from penstock.client import Options
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.batches.lines import ENDPOINT, write_lines
from penstock.proofs.batches.run import client_of
from penstock.proofs.card import CardLine, at_least, at_most, reported
from penstock.proofs.testbed.testbed import Testbed, open_testbed
from penstock.v1.batches_pb2 import CreateBatchRequest
from penstock.v1.inference_pb2 import PRIORITY_INTERACTIVE

# Slow steps and few slots: the workers are busy before the processors of this machine are. The queue has its usual
# targets, by which it decides what waits.
SETTINGS = (
    "PENSTOCK_WORKER_SIM_BASE_S=0.05",
    "PENSTOCK_WORKER_SLOTS=8",
    "PENSTOCK_QUEUE_TTFT_INTERACTIVE=10",
    "PENSTOCK_QUEUE_TTFT_STANDARD=60",
    "PENSTOCK_EDGE_LOG_LEVEL=warning",
    "PENSTOCK_WORKER_LOG_LEVEL=warning",
)
LINES = 20_000  # more than run meanwhile
LINE_TOKENS = 32  # of an answer, at most
RATE = 4.0  # interactive requests/s, about a third of what the workers can answer
PROMPT_TOKENS, ANSWER_TOKENS = LengthRange(low=16, high=64), LengthRange(low=8, high=32)
SLO = Slo(ttft=1.0, tpot=0.2)
WARM_UP_S = 5.0  # of the batch, before the load beside it
SAMPLE_INTERVAL_S = 0.25
MAX_TTFT_RATIO = 1.1
MIN_GOODPUT_SHARE = 99.0  # %
MIN_BUSY_SHARE = 95.0  # %


@dataclass(slots=True)
class WorkerUse:
    """How busy the workers were."""

    busy_share: float = 0.0  # of the time, of the least busy worker
    slots_used: list[float] = field(default_factory=list)  # shares of all slots


async def interactive_beside(seconds: float, seed: int, mesh: MeshOptions, console: Console) -> list[CardLine]:
    own = replace(mesh, batches=max(1, mesh.batches))
    async with open_testbed(own, console, settings=SETTINGS) as testbed:
        testbed.report_progress("interactive load alone")
        alone = await _offer(testbed, seconds, seed)
        async with _batch(testbed):
            testbed.report_progress("interactive load beside a batch")
            use = WorkerUse()
            async with _measured(testbed, use):
                beside = await _offer(testbed, seconds, seed + 1)
    return beside_lines(alone, beside, use)


@asynccontextmanager
async def _batch(testbed: Testbed) -> AsyncIterator[None]:
    """Run a batch during the block, and cancel it."""
    async with client_of(testbed) as client:
        path = testbed.mesh.folder / "lines.jsonl"
        await asyncio.to_thread(write_lines, path, LINES, LINE_TOKENS)
        file = await client.upload(path)
        batch = await client.create(CreateBatchRequest(input_file_id=file.id, endpoint=ENDPOINT))
        await asyncio.sleep(WARM_UP_S)
        yield
        await client.cancel(batch.id)


async def _offer(testbed: Testbed, seconds: float, seed: int) -> list[Transcript]:
    """Send interactive requests for a time; return their transcripts once all have ended."""
    load = BenchLoad(
        requests=round(RATE * seconds), rate=RATE, prompt_lengths=PROMPT_TOKENS, output_lengths=ANSWER_TOKENS, seed=seed
    )
    transcripts: list[Transcript] = []

    async def send(request: BenchRequest) -> None:
        options = Options(**{**request.options, "priority": PRIORITY_INTERACTIVE})
        transcript = Transcript(request.number, time.time())
        transcripts.append(transcript)
        await testbed.driver.send(replace(request, options=options), transcript)

    await send_at_times(load.planned_requests(), lambda request: request.send_at, send)
    return transcripts


@asynccontextmanager
async def _measured(testbed: Testbed, use: WorkerUse) -> AsyncIterator[None]:
    """Measure the use of the workers during the block."""
    workers = [each.admin_address for each in testbed.mesh.plan.processes_of("worker")]

    async def sample() -> None:
        while True:
            figures = [await testbed.figures_of(each) for each in workers]
            use.slots_used.append(sum(each["running"] for each in figures) / sum(each["slots"] for each in figures))
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def busy_seconds() -> list[float]:
        return [(await testbed.figures_of(each))["busy_seconds"] for each in workers]

    began_at, before = time.monotonic(), await busy_seconds()
    sampling = asyncio.create_task(sample())
    try:
        yield
    finally:
        sampling.cancel()
    after, seconds = await busy_seconds(), time.monotonic() - began_at
    use.busy_share = min((late - early) / seconds for early, late in zip(before, after, strict=True))


def beside_lines(alone: Sequence[Transcript], beside: Sequence[Transcript], use: WorkerUse) -> list[CardLine]:
    usual, now = ([each.ttft or 0.0 for each in found] for found in (alone, beside))
    goodput = [100 * sum(map(SLO.is_met_by, found)) / max(1, len(found)) for found in (alone, beside)]
    ratio = quantile(now, 0.99) / max(1e-9, quantile(usual, 0.99))
    return [
        reported("interactive requests alone", len(alone)),
        reported("interactive requests beside a batch", len(beside)),
        reported("P50 TTFT alone", quantile(usual, 0.5), "s"),
        reported("P50 TTFT beside a batch", quantile(now, 0.5), "s"),
        reported("P99 TTFT alone", quantile(usual, 0.99), "s"),
        reported("P99 TTFT beside a batch", quantile(now, 0.99), "s"),
        at_most("P99 TTFT beside a batch, times that alone", ratio, MAX_TTFT_RATIO),
        reported("interactive goodput alone", goodput[0], "%"),
        at_least("interactive goodput beside a batch", goodput[1], MIN_GOODPUT_SHARE, "%"),
        at_least("busy time of the least busy worker", 100 * use.busy_share, MIN_BUSY_SHARE, "%"),
        reported("slots in use, mean", 100 * sum(use.slots_used) / max(1, len(use.slots_used)), "%"),
    ]
