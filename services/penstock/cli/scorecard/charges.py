"""Whether what was charged is what was seen. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.cli.scorecard.history import History

LOST = "lost"  # outcome of a reservation whose edge died; charged nothing, for nobody can say what its client got


class Charge(NamedTuple):
    """One row of auth's ledger."""

    ticket_id: str
    output_tokens: int
    outcome: str


@dataclass(slots=True, kw_only=True)
class ChargeFindings:
    """Output tokens, but where it says otherwise."""

    seen: int = 0  # by clients
    charged: int = 0
    overcharged: int = 0  # beyond what the client of the request saw
    undercharged: int = 0  # of requests that no edge's death excuses
    excused: int = 0  # of attempts whose edge died with them
    doubled: int = 0  # tickets that were charged more than once
    strays: int = 0  # charges of tickets that no client asked for


def check_charges(
    histories: Iterable[History], charges: Iterable[Charge], request_of: Mapping[str, str]
) -> ChargeFindings:
    """Hold the ledger against what clients saw; `request_of` names the request that a ticket was for."""
    rows = [each for each in charges if each.outcome != LOST]
    findings = ChargeFindings(charged=sum(each.output_tokens for each in rows))
    findings.doubled = sum(count > 1 for count in Counter(each.ticket_id for each in rows).values())
    charged: Counter[str] = Counter()
    for each in rows:
        charged[request_of.get(each.ticket_id, "")] += each.output_tokens
    findings.strays = charged.pop("", 0)
    for history in histories:
        _compare(history, charged.pop(history.request_id, 0), findings)
    findings.strays += charged.total()
    return findings


def _compare(history: History, charged: int, findings: ChargeFindings) -> None:
    seen = len(set(history.indexes))
    findings.seen += seen
    findings.overcharged += max(0, charged - seen)
    if history.attempts > 1:
        findings.excused += max(0, seen - charged)
    else:
        findings.undercharged += max(0, seen - charged)
