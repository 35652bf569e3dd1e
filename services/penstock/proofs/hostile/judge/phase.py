"""One phase of the honest load, calm or beside an attack, and what clients got in it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.bench.statistics import quantile
from penstock.bench.transcript import OK, Transcript

MIN_GOODPUT_SHARE = 0.90  # of calm
MAX_TTFT_RATIO = 2.0  # P99 beside an attack, times that of calm
# On a machine that others use as well, a first token below this time is not held against an attack.
TTFT_NOISE_FLOOR_S = 0.25
TIMED_OUT = "DEADLINE_EXCEEDED"


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """A span of Unix s."""

    name: str
    began_at: float
    ended_at: float
    settled_at: float = 0.0  # until when failures count as those of the phase; 0: until its end

    def has(self, moment: float) -> bool:
        return self.began_at <= moment < self.ended_at

    def overlaps(self, transcript: Transcript) -> bool:
        return transcript.started_at < self.ended_at and (transcript.ended_at or self.ended_at) > self.began_at

    def has_failure(self, transcript: Transcript) -> bool:
        """Whether a request failed in this phase. One whose deadline passed failed at its last token."""
        if _is_good(transcript):
            return False
        progressed_at = transcript.arrivals[-1] if transcript.arrivals else transcript.started_at
        moment = progressed_at if transcript.code == TIMED_OUT else transcript.ended_at
        return self.began_at <= moment < (self.settled_at or self.ended_at)

    @property
    def length(self) -> float:
        return max(1e-9, self.ended_at - self.began_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """What honest clients got in one phase, or in several of the same kind."""

    requests: int  # that were active
    failed: int  # requests that failed, each in one phase
    failed_streams: int  # of them streams through Envoy
    goodput: float  # tokens/s of answers that came to their right end
    ttft_p99: float  # s, of the requests that started


def figures_of(
    phases: Sequence[PhaseTime], requests: Sequence[Transcript], streams: Sequence[Transcript]
) -> PhaseFigures:
    every = [*requests, *streams]
    active = [each for each in every if any(phase.overlaps(each) for phase in phases)]
    tokens = sum(_is_good(each) and any(phase.has(at) for phase in phases) for each in active for at in each.arrivals)
    ttfts = [each.ttft for each in active if each.ttft is not None and any(p.has(each.started_at) for p in phases)]
    stream_ids = {id(each) for each in streams}
    failed = [each for each in every if any(phase.has_failure(each) for phase in phases)]
    return PhaseFigures(
        requests=len(active),
        failed=len(failed),
        failed_streams=sum(id(each) in stream_ids for each in failed),
        goodput=tokens / sum(phase.length for phase in phases),
        ttft_p99=quantile(ttfts, 0.99) if ttfts else 0.0,
    )


def _is_good(transcript: Transcript) -> bool:
    return transcript.outcome == OK and not transcript.index_errors


def failures_by_reason(phase: PhaseTime, transcripts: Sequence[Transcript]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in transcripts:
        if phase.has_failure(each):
            reason = f"{each.code} {each.outcome}" if each.outcome != OK else "tokens lost"
            found[reason] = found.get(reason, 0) + 1
    return found


def ttft_bound(calm: PhaseFigures) -> float:
    """Return the longest P99 of TTFT in s that an attack may cause."""
    return max(MAX_TTFT_RATIO * calm.ttft_p99, TTFT_NOISE_FLOOR_S)
