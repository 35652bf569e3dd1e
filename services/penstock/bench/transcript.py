"""Transcripts: tokens and times of one request at its client, and their difference from the expected ones. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import PenstockError
from penstock.client.progress import TokenChunk
from penstock.client.retries import CONNECTION_LOST
from penstock.v1.inference_pb2 import Finished, FinishReason, Timeline

OK = "ok"
CANCELLED = "cancelled"


@dataclass(slots=True)
class Transcript:
    """Times and counts of one request. Times are in s on one clock."""

    number: int = 0
    started_at: float = 0.0
    arrivals: list[float] = field(default_factory=list)  # time of each chunk of tokens
    tokens: int = 0
    next_index: int = 0
    index_errors: int = 0  # tokens missing, doubled or out of order
    ended_at: float = 0.0
    outcome: str = ""  # OK, CANCELLED, or the reason of the error; empty: active
    code: str = ""
    retry_after: float | None = None  # s
    is_accepted: bool = False  # an edge has accepted the request
    usage_tokens: int | None = None  # output tokens of the last attempt, as the mesh counts them

    def record(self, now: float, first_index: int, count: int) -> None:
        """Record a chunk of `count` tokens whose first token has the index `first_index`."""
        if count == 0:
            return
        self.index_errors += first_index != self.next_index
        self.next_index = first_index + count
        self.tokens += count
        self.arrivals.append(now)

    def record_chunk(self, now: float, chunk: TokenChunk) -> None:
        self.record(now, chunk.first_index, len(chunk.token_ids))

    def finish(self, now: float, finished: Finished) -> None:
        self.usage_tokens = finished.usage.output_tokens
        self.end(now, OK)

    def fail(self, now: float, error: PenstockError) -> None:
        self.end(now, error.reason, error.code.name, error.retry_after)

    def end(self, now: float, outcome: str, code: str = "OK", retry_after: float | None = None) -> None:
        self.ended_at, self.outcome, self.code, self.retry_after = now, outcome, code, retry_after
        if outcome == OK and self.usage_tokens is not None:
            self.index_errors += self.usage_tokens != self.tokens

    @property
    def ttft(self) -> float | None:
        return self.arrivals[0] - self.started_at if self.arrivals else None

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first."""
        if self.tokens < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.tokens - 1)

    @property
    def token_gaps(self) -> list[float]:
        """Times between chunks: the inter-token latencies that the client sees."""
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def longest_pause(self) -> tuple[float, float]:
        """Start and length of the longest time between two chunks."""
        return max(
            zip(self.arrivals, self.token_gaps, strict=False),
            key=lambda pause: pause[1],
            default=(self.started_at, 0.0),
        )


@dataclass(slots=True)
class TokenTranscript(Transcript):
    """A transcript that keeps every token as it was received, so that errors can be found. Times are Unix s.

    `number` is the index of the request in its catalog.
    """

    request_id: str = ""
    indexes: list[int] = field(default_factory=list)  # one for each token
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    attempts: int = 0
    finish_reason: str = ""  # reason and stop string; empty: not finished
    failure_text: str = ""
    lost_connection: bool = False  # the failure is that of a connection, or of the process at its other end
    via: str = ""  # the proxy that the client was connected to; ANY_ENVOY: one of several
    is_plain: bool = False  # the client neither retries nor resumes
    stage_durations: Mapping[str, float] = field(default_factory=dict)  # s up to the first token, if requested

    def record_chunk(self, now: float, chunk: TokenChunk) -> None:
        self.record(now, chunk.first_index, len(chunk.token_ids))
        self.indexes += range(chunk.first_index, chunk.first_index + len(chunk.token_ids))
        self.token_ids += chunk.token_ids
        self.text += chunk.text

    def finish(self, now: float, finished: Finished) -> None:
        Transcript.finish(self, now, finished)
        self.finish_reason = FinishReason.Name(finished.reason) + finished.stop_string
        self.stage_durations = stages_before_decode(finished.timeline)

    def fail(self, now: float, error: PenstockError) -> None:
        Transcript.fail(self, now, error)
        self.failure_text = f"{error.code.name} / {error.reason}: {error}"
        self.lost_connection = error.reason == CONNECTION_LOST


def stages_before_decode(timeline: Timeline) -> dict[str, float]:
    """Return the s of each stage up to the first token, by tier and name; of the last attempt if there were several."""
    durations: dict[str, float] = {}
    for stage in timeline.stages:
        if stage.name == "decode":
            break
        durations[f"{stage.tier} {stage.name}"] = seconds_of(stage.length)
    return durations


@dataclass(slots=True, kw_only=True)
class TranscriptFindings:
    """Errors of several transcripts together, in tokens unless a field says requests."""

    requests: int = 0
    failures: int = 0  # requests
    missing: int = 0
    duplicated: int = 0
    reordered: int = 0  # received after a token with a higher index
    changed: int = 0  # other than in the reference
    identical: int = 0  # requests whose ids, text and finish reason are those of the reference
    failure_reasons: list[str] = field(default_factory=list)

    def add(self, other: "TranscriptFindings") -> None:
        """Add the counts and reasons of other transcripts."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def check_transcripts(
    transcripts: Iterable[TokenTranscript], references: Sequence[TokenTranscript]
) -> TranscriptFindings:
    """Compare each transcript with the fault-free one of the same request: `references[transcript.number]`."""
    findings = TranscriptFindings()
    for transcript in transcripts:
        _check_transcript(transcript, references[transcript.number], findings)
    return findings


def _check_transcript(transcript: TokenTranscript, reference: TokenTranscript, findings: TranscriptFindings) -> None:
    findings.requests += 1
    if transcript.failure_text or not transcript.finish_reason:
        findings.failures += 1
        findings.failure_reasons.append(_failure_reason(transcript))
    seen, latest = set[int](), -1
    for index, token_id in zip(transcript.indexes, transcript.token_ids, strict=True):
        if index in seen:
            findings.duplicated += 1
        elif index < latest:
            findings.reordered += 1
        seen.add(index)
        latest = max(latest, index)
        findings.changed += not _is_expected(index, token_id, reference)
    expected = len(reference.token_ids) if transcript.finish_reason else latest + 1
    findings.missing += expected - sum(index < expected for index in seen)
    findings.identical += _is_identical(transcript, reference)


def _failure_reason(transcript: TokenTranscript) -> str:
    route = f"{transcript.request_id} through {transcript.via}" if transcript.via else transcript.request_id
    return f"{route}: {transcript.failure_text or 'never ended'}"


def _is_expected(index: int, token_id: int, reference: TokenTranscript) -> bool:
    return index < len(reference.token_ids) and reference.token_ids[index] == token_id


def _is_identical(transcript: TokenTranscript, reference: TokenTranscript) -> bool:
    return (
        not transcript.failure_text
        and (transcript.token_ids, transcript.text, transcript.finish_reason)
        == (reference.token_ids, reference.text, reference.finish_reason)
        and transcript.indexes == list(range(len(transcript.indexes)))
    )
