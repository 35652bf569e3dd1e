"""Load of a region for the parts that kill or drain it: resuming streams beside unary calls."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from penstock.bench.transcript import TokenTranscript, check_transcripts
from penstock.proofs.regions.load import ResumingDriver, UnaryLoad
from penstock.proofs.regions.options import RegionsOptions
from penstock.proofs.regions.testbed import HOME, NO_TARGETS, RegionsTestbed
from penstock.proofs.testbed.clients.load import ClosedLoopLoad, run_baseline
from penstock.proofs.testbed.testbed import under_load, wait_for_tokens

# Two cores carry 64 streams. A prompt of 500 tokens takes 10 ms, as on a small GPU: all answers of a region that dies
# are prefilled again in the other one, at the same time.
SETTINGS = (
    *NO_TARGETS,
    "PENSTOCK_WORKER_SLOTS=96",
    "PENSTOCK_WORKER_SIM_BASE_S=0.05",
    "PENSTOCK_WORKER_SIM_PER_PREFILL_TOKEN_S=0.00002",
)
CATALOG_SIZE = 8
TOKENS_BEFORE = 8  # of each stream, before the part begins
MAX_NOTES = 5  # of each kind of failure


@dataclass(slots=True)
class SteadyLoad:
    """The load and what became of it. `baseline`: the transcripts of the same requests without a fault."""

    baseline: Sequence[TokenTranscript]
    driver: ResumingDriver
    streams: ClosedLoopLoad
    unary: UnaryLoad

    @property
    def transcripts(self) -> Sequence[TokenTranscript]:
        return self.streams.transcripts

    @property
    def failure_notes(self) -> list[str]:
        reasons = check_transcripts(self.transcripts, self.baseline).failure_reasons
        return [*self.unary.failures[:MAX_NOTES], *reasons[:MAX_NOTES]]


@asynccontextmanager
async def steady_load(
    testbed: RegionsTestbed, options: RegionsOptions, part: str, unary_rate: float
) -> AsyncIterator[SteadyLoad]:
    """Load the home region in the block, which begins when every stream has tokens. `unary_rate`: calls/s."""
    client = testbed.testbeds[HOME].client
    testbed.report_progress(f"{part}: answering every request without a fault")
    requests, baseline = await run_baseline(client, CATALOG_SIZE, options.tokens, options.seed)
    driver = ResumingDriver(client)
    streams = ClosedLoopLoad(driver, requests, options.streams, options.seed)
    unary = UnaryLoad(lambda: client.count_tokens("How many tokens?"), unary_rate)
    async with under_load(streams), unary.running():
        await wait_for_tokens(streams, TOKENS_BEFORE * options.streams)
        yield SteadyLoad(baseline, driver, streams, unary)
