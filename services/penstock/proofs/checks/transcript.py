"""What one client saw of one request, and how that differs from what it was owed. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

ANY_ENVOY = "any Envoy"  # `via` of a client that rotates between several Envoys


@dataclass(slots=True, kw_only=True)
class TokenTranscript:
    """Times are Unix s. Tokens are noted as they came, so that what came wrong can be found."""

    request_index: int  # which of the catalog's requests
    request_id: str
    started_at: float
    indexes: list[int] = field(default_factory=list)  # one for each token
    token_ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    attempts: int = 0
    ended_at: float = 0.0
    finish_reason: str = ""  # why it ended; empty: it never did
    usage_tokens: int = 0  # what its last attempt has cost
    failure_text: str = ""
    lost_connection: bool = False  # the failure is that of a connection, or of the process at its other end
    via: str = ""  # the process that the client was connected to, if it was a proxy; ANY_ENVOY: one of several
    is_plain: bool = False  # the client neither retries nor resumes
    stage_durations: Mapping[str, float] = field(default_factory=dict)  # s to the first token, where that was asked for

    def record(self, now: float, first_index: int, token_ids: Sequence[int], text: str) -> None:
        self.indexes += range(first_index, first_index + len(token_ids))
        self.token_ids += token_ids
        self.arrivals += [now] * len(token_ids)
        self.text += text

    @property
    def ttft(self) -> float | None:
        return self.arrivals[0] - self.started_at if self.arrivals else None

    @property
    def longest_pause(self) -> float:
        """Between two tokens."""
        return self.longest_silence[1]

    @property
    def longest_silence(self) -> tuple[float, float]:
        """When the longest pause between two tokens began, and how long it lasted."""
        pauses = ((earlier, later - earlier) for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False))
        return max(pauses, key=lambda pause: pause[1], default=(self.started_at, 0.0))


@dataclass(slots=True, kw_only=True)
class TranscriptFindings:
    """Of all histories together; tokens but where it says requests."""

    requests: int = 0
    failures: int = 0  # requests
    missing: int = 0
    duplicated: int = 0
    reordered: int = 0  # came after a later one
    changed: int = 0  # other than in the fault-free run
    identical: int = 0  # requests whose ids, text and ending are those of the fault-free run
    failure_reasons: list[str] = field(default_factory=list)  # of the failures


def check_transcripts(
    transcripts: Iterable[TokenTranscript], references: Sequence[TokenTranscript]
) -> TranscriptFindings:
    """Hold each history against the fault-free run of the same wish."""
    findings = TranscriptFindings()
    for history in transcripts:
        _check_transcript(history, references[history.request_index], findings)
    return findings


def _check_transcript(transcript: TokenTranscript, reference: TokenTranscript, findings: TranscriptFindings) -> None:
    findings.requests += 1
    if transcript.failure_text or not transcript.finish_reason:
        findings.failures += 1
        findings.failure_reasons.append(_reason(transcript))
    seen, latest = set[int](), -1
    for index, token_id in zip(transcript.indexes, transcript.token_ids, strict=True):
        if index in seen:
            findings.duplicated += 1
        elif index < latest:
            findings.reordered += 1
        seen.add(index)
        latest = max(latest, index)
        findings.changed += not _is_expected(index, token_id, reference)
    owed = len(reference.token_ids) if transcript.finish_reason else latest + 1
    findings.missing += owed - sum(index < owed for index in seen)
    findings.identical += _is_identical(transcript, reference)


def _reason(transcript: TokenTranscript) -> str:
    where = f"{transcript.request_id} through {transcript.via}" if transcript.via else transcript.request_id
    return f"{where}: {transcript.failure_text or 'never ended'}"


def _is_expected(index: int, token_id: int, reference: TokenTranscript) -> bool:
    return index < len(reference.token_ids) and reference.token_ids[index] == token_id


def _is_identical(transcript: TokenTranscript, reference: TokenTranscript) -> bool:
    return (
        not transcript.failure_text
        and (transcript.token_ids, transcript.text, transcript.finish_reason)
        == (reference.token_ids, reference.text, reference.finish_reason)
        and transcript.indexes == list(range(len(transcript.indexes)))
    )
