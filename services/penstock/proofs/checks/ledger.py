"""Compares the tokens that auth charged with the tokens that clients received. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.bench.transcript import TokenTranscript

LOST_OUTCOME = "lost"  # of a reservation whose edge died; its tokens are charged with those of the next attempt


class LedgerCharge(NamedTuple):
    """One row of auth's ledger."""

    ticket_id: str
    prompt_tokens: int
    output_tokens: int
    outcome: str


@dataclass(slots=True, kw_only=True)
class ChargeFindings:
    """Counts of output tokens, unless a field says otherwise."""

    seen_tokens: int = 0  # received by clients
    charged_tokens: int = 0
    overcharged_tokens: int = 0  # beyond those that the client of the request received
    undercharged_tokens: int = 0  # received, and charged in no attempt
    double_charged_prompts: int = 0  # requests whose prompt was charged with more than one attempt
    uncharged_prompts: int = 0  # requests with an answer whose prompt was charged with none
    double_charged_tickets: int = 0  # tickets that were charged more than once
    unattributed_tokens: int = 0  # charged for tickets of no known request


def check_charges(
    transcripts: Iterable[TokenTranscript], charges: Iterable[LedgerCharge], request_by_ticket: Mapping[str, str]
) -> ChargeFindings:
    """Compare the ledger with the transcripts; `request_by_ticket` names the request of each ticket."""
    rows = [each for each in charges if each.outcome != LOST_OUTCOME]
    findings = ChargeFindings(charged_tokens=sum(each.output_tokens for each in rows))
    findings.double_charged_tickets = sum(count > 1 for count in Counter(each.ticket_id for each in rows).values())
    by_request: dict[str, list[LedgerCharge]] = defaultdict(list)
    for each in rows:
        by_request[request_by_ticket.get(each.ticket_id, "")].append(each)
    for transcript in transcripts:
        _compare_request(transcript, by_request.pop(transcript.request_id, []), findings)
    findings.unattributed_tokens = sum(each.output_tokens for strays in by_request.values() for each in strays)
    return findings


def _compare_request(transcript: TokenTranscript, charges: Sequence[LedgerCharge], findings: ChargeFindings) -> None:
    seen, charged = len(set(transcript.indexes)), sum(each.output_tokens for each in charges)
    findings.seen_tokens += seen
    findings.overcharged_tokens += max(0, charged - seen)
    findings.undercharged_tokens += max(0, seen - charged)
    prompts = sum(each.prompt_tokens > 0 for each in charges)
    findings.double_charged_prompts += prompts > 1
    findings.uncharged_prompts += bool(seen) and not prompts


def requests_of_several_tickets(charges: Iterable[LedgerCharge], request_by_ticket: Mapping[str, str]) -> set[str]:
    """Return the requests of which edges have settled several tickets.

    The client of such a request left an edge that went on with it: the connection was lost, and the edge was not, or
    not before it had settled the ticket.
    """
    settled = {each.ticket_id for each in charges if each.outcome != LOST_OUTCOME}
    tickets = Counter(request_by_ticket[each] for each in settled if each in request_by_ticket)
    return {request_id for request_id, count in tickets.items() if count > 1}
