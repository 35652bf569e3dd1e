"""Compares what auth let through with the limits of its tenants, and its ledger with what the engines counted. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.auth.quota.bucket import Bucket
from penstock.proofs.card import CardLine, exactly, reported
from penstock.proofs.checks.ledger import LOST_OUTCOME


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """Limits of one tenant of the proof; 0: none."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent_requests: int = 0


class LedgerEntry(NamedTuple):
    """One row of auth's ledger, with its times in Unix s of auth."""

    reservation_id: str
    ticket_id: str
    tenant_id: str
    reserved_at: float
    settled_at: float
    reserved_tokens: int
    prompt_tokens: int
    made_tokens: int
    outcome: str

    @property
    def taken_tokens(self) -> int:
        """The tokens that the limit per minute counts: those of a lost reservation are unknown, and all are counted."""
        return self.reserved_tokens if self.outcome == LOST_OUTCOME else self.prompt_tokens + self.made_tokens


@dataclass(slots=True, kw_only=True)
class LimitFindings:
    """What was let through beyond limits."""

    requests: int = 0  # of tenants with limits
    deferred: int = 0  # of them admitted by an edge while auth was unreachable
    tokens_over: int = 0
    requests_over: int = 0
    concurrent_over: int = 0
    used_share: dict[str, float] = field(default_factory=dict)  # of what the limit of tokens allowed, by tenant


def check_limits(
    entries: Iterable[LedgerEntry], limits: Mapping[str, TenantLimits], deferred: Collection[str]
) -> LimitFindings:
    """Replay the requests of each tenant with its limits. `deferred` are reservations that edges admitted under grants.

    Deferred ones are not judged, because auth records them beyond limits, and their grants bound them.
    """
    findings = LimitFindings()
    by_tenant: dict[str, list[LedgerEntry]] = defaultdict(list)
    for each in entries:
        if each.tenant_id in limits:
            by_tenant[each.tenant_id].append(each)
    for tenant_id, found in by_tenant.items():
        findings.requests += len(found)
        findings.deferred += sum(each.reservation_id in deferred for each in found)
        others = (each for each in found if each.reservation_id not in deferred)
        judged = sorted(others, key=lambda each: each.reserved_at)
        limit = limits[tenant_id]
        if limit.tokens_per_minute:
            findings.tokens_over += _beyond(limit.tokens_per_minute, [(e.reserved_at, e.taken_tokens) for e in judged])
            findings.used_share[tenant_id] = _used_share(limit.tokens_per_minute, judged)
        if limit.requests_per_minute:
            findings.requests_over += _beyond(limit.requests_per_minute, [(each.reserved_at, 1) for each in judged])
        if limit.concurrent_requests:
            findings.concurrent_over += max(0, _most_at_once(judged) - limit.concurrent_requests)
    return findings


def _beyond(per_minute: int, takes: Sequence[tuple[float, int]]) -> int:
    """Return the amount by which takes exceed a bucket that grants a minute's amount at once."""
    bucket, beyond = Bucket(per_minute), 0
    for at, amount in takes:
        allowed = min(amount, bucket.available(at))
        beyond += amount - allowed
        bucket.spend(allowed, at)
    return beyond


def _used_share(per_minute: int, entries: Sequence[LedgerEntry]) -> float:
    if not entries:
        return 0.0
    allowed = per_minute * (1 + (entries[-1].reserved_at - entries[0].reserved_at) / 60)
    return sum(each.taken_tokens for each in entries) / allowed


def _most_at_once(entries: Sequence[LedgerEntry]) -> int:
    # A reservation that ends and one that begins at the same moment do not overlap.
    changes = [(each.reserved_at, 1) for each in entries] + [(each.settled_at, -1) for each in entries]
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most


def limit_lines(findings: LimitFindings) -> list[CardLine]:
    shares = findings.used_share.values()
    return [
        reported("requests of tenants with limits", findings.requests),
        reported("of them admitted by edges while auth was unreachable", findings.deferred),
        exactly("tokens beyond a limit per minute", findings.tokens_over, 0),
        exactly("requests beyond a limit per minute", findings.requests_over, 0),
        exactly("requests beyond a limit at once", findings.concurrent_over, 0),
        reported("least used share of a limit of tokens", 100 * min(shares, default=0.0), "%"),
    ]


@dataclass(slots=True, kw_only=True)
class EngineFindings:
    """Differences between the ledger and the engines, in tickets."""

    compared: int = 0
    cut_off: int = 0  # whose edge lost its stream to a worker
    different: int = 0
    uncharged: int = 0  # that an engine ran, whose edge ended them, and that the ledger does not have
    charged_twice: int = 0
    examples: list[str] = field(default_factory=list)


class EngineCount(NamedTuple):
    """Tokens that engines made for one ticket, over all its runs."""

    made: int
    is_stopped: bool = False  # whether the edge stopped a run
    is_cut_off: bool = False  # whether the edge lost its stream to a worker, whose run then went on until it noticed

    def is_charged_by(self, row: LedgerEntry) -> bool:
        """Whether a row charges these tokens.

        An answer does not pay for tokens after its stop string, which the engine makes until the edge stops it: these
        answers are compared with what their clients received. A cancelled one pays for all. No answer pays for tokens
        that a worker made after the edge lost its stream.
        """
        if self.is_cut_off:
            return row.made_tokens <= self.made
        if row.outcome == "stop" and self.is_stopped:
            return row.made_tokens <= self.made
        return row.made_tokens == self.made


def check_engine_counts(
    entries: Iterable[LedgerEntry], counts: Mapping[str, EngineCount], ended: Collection[str]
) -> EngineFindings:
    """Compare the tokens of each ticket. Its edge has `ended` it; the others are those of edges that died."""
    findings = EngineFindings()
    rows: dict[str, list[LedgerEntry]] = defaultdict(list)
    for each in entries:
        rows[each.ticket_id].append(each)
    findings.charged_twice = sum(len(found) > 1 for found in rows.values())
    for ticket_id in counts.keys() & set(ended):
        found = [each for each in rows.get(ticket_id, ()) if each.outcome != LOST_OUTCOME]
        findings.compared += 1
        findings.cut_off += counts[ticket_id].is_cut_off
        if not found:
            findings.uncharged += 1
            findings.examples.append(f"{ticket_id}: the ledger does not have it")
        elif not counts[ticket_id].is_charged_by(found[0]):
            findings.different += 1
            made = counts[ticket_id].made
            findings.examples.append(f"{ticket_id}: {found[0].made_tokens} in the ledger, {made} by engines")
    return findings


def engine_lines(findings: EngineFindings) -> list[CardLine]:
    return [
        reported("tickets compared with the engines", findings.compared),
        reported("of them cut off from their worker, charged at most what it made", findings.cut_off),
        exactly("of them with other tokens in the ledger", findings.different, 0),
        exactly("of them not in the ledger", findings.uncharged, 0),
        exactly("tickets with two rows in the ledger", findings.charged_twice, 0),
    ]
