"""Whether what was charged is what was seen. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.proofs.checks.transcript import History

LOST = "lost"  # outcome of a reservation whose edge died; what went on from there is charged with the rest


class Charge(NamedTuple):
    """One row of auth's ledger."""

    ticket_id: str
    prompt_tokens: int
    output_tokens: int
    outcome: str


@dataclass(slots=True, kw_only=True)
class ChargeFindings:
    """Output tokens, but where it says otherwise."""

    seen: int = 0  # by clients
    charged: int = 0
    overcharged: int = 0  # beyond what the client of the request saw
    undercharged: int = 0  # seen, and charged in no attempt
    prompts_again: int = 0  # requests whose prompt was charged with more than one attempt
    prompts_free: int = 0  # requests with an answer whose prompt was charged with none
    doubled: int = 0  # tickets that were charged more than once
    strays: int = 0  # charges of tickets that no client asked for


def check_charges(
    histories: Iterable[History], charges: Iterable[Charge], request_of: Mapping[str, str]
) -> ChargeFindings:
    """Hold the ledger against what clients saw; `request_of` names the request that a ticket was for."""
    rows = [each for each in charges if each.outcome != LOST]
    findings = ChargeFindings(charged=sum(each.output_tokens for each in rows))
    findings.doubled = sum(count > 1 for count in Counter(each.ticket_id for each in rows).values())
    of_request: dict[str, list[Charge]] = defaultdict(list)
    for each in rows:
        of_request[request_of.get(each.ticket_id, "")].append(each)
    for history in histories:
        _compare(history, of_request.pop(history.request_id, []), findings)
    findings.strays = sum(each.output_tokens for strays in of_request.values() for each in strays)
    return findings


def _compare(history: History, charges: Sequence[Charge], findings: ChargeFindings) -> None:
    seen, charged = len(set(history.indexes)), sum(each.output_tokens for each in charges)
    findings.seen += seen
    findings.overcharged += max(0, charged - seen)
    findings.undercharged += max(0, seen - charged)
    prompts = sum(each.prompt_tokens > 0 for each in charges)
    findings.prompts_again += prompts > 1
    findings.prompts_free += bool(seen) and not prompts
