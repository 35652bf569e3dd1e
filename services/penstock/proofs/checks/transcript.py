"""What one client saw of one request, and how that differs from what it was owed. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class History:
    """Times are Unix s. Tokens are noted as they came, so that what came wrong can be found."""

    wish: int  # which of the catalog's requests
    request_id: str
    started: float
    indexes: list[int] = field(default_factory=list)  # one for each token
    token_ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    attempts: int = 0
    ended: float = 0.0
    finish: str = ""  # why it ended; empty: it never did
    usage_tokens: int = 0  # what its last attempt has cost
    failure: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)  # s to the first token, where that was asked for

    def take(self, now: float, first_index: int, token_ids: Sequence[int], text: str) -> None:
        self.indexes += range(first_index, first_index + len(token_ids))
        self.token_ids += token_ids
        self.arrivals += [now] * len(token_ids)
        self.text += text

    @property
    def ttft(self) -> float | None:
        return self.arrivals[0] - self.started if self.arrivals else None

    @property
    def longest_pause(self) -> float:
        """Between two tokens."""
        pauses = (later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False))
        return max(pauses, default=0.0)


@dataclass(slots=True, kw_only=True)
class Findings:
    """Of all histories together; tokens but where it says requests."""

    requests: int = 0
    failures: int = 0  # requests
    missing: int = 0
    doubled: int = 0
    reordered: int = 0  # came after a later one
    changed: int = 0  # other than in the fault-free run
    identical: int = 0  # requests whose ids, text and ending are those of the fault-free run
    reasons: list[str] = field(default_factory=list)  # of the failures


def check(histories: Iterable[History], references: Sequence[History]) -> Findings:
    """Hold each history against the fault-free run of the same wish."""
    findings = Findings()
    for history in histories:
        _check_one(history, references[history.wish], findings)
    return findings


def _check_one(history: History, reference: History, findings: Findings) -> None:
    findings.requests += 1
    if history.failure or not history.finish:
        findings.failures += 1
        findings.reasons.append(history.failure or "never ended")
    seen, latest = set[int](), -1
    for index, token_id in zip(history.indexes, history.token_ids, strict=True):
        if index in seen:
            findings.doubled += 1
        elif index < latest:
            findings.reordered += 1
        seen.add(index)
        latest = max(latest, index)
        findings.changed += not _is_owed(index, token_id, reference)
    owed = len(reference.token_ids) if history.finish else latest + 1
    findings.missing += owed - sum(index < owed for index in seen)
    findings.identical += _is_same(history, reference)


def _is_owed(index: int, token_id: int, reference: History) -> bool:
    return index < len(reference.token_ids) and reference.token_ids[index] == token_id


def _is_same(history: History, reference: History) -> bool:
    return (
        not history.failure
        and (history.token_ids, history.text, history.finish) == (reference.token_ids, reference.text, reference.finish)
        and history.indexes == list(range(len(history.indexes)))
    )
