"""Classifies requests by whether the death of an Envoy or an edge interrupted them. Pure.

An Envoy that dies closes its connections. An SDK client resumes its answers by `answer_id` through another Envoy, so
its requests must not fail. A plain gRPC client sees its call fail with UNAVAILABLE, or with INTERNAL and `RST_STREAM`
if only the stream was reset, and has to repeat the call. The same holds for a plain client if the edge behind its Envoy
dies. The death of any other process must not fail a request.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.bench.transcript import TokenTranscript, TranscriptFindings, check_transcripts
from penstock.proofs.card import CardLine, charge_lines, exactly, reported
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.checks.ledger import LedgerCharge, check_charges

ANY_ENVOY = "any Envoy"  # `TokenTranscript.via` of a client that rotates between several Envoys
NOTICE_S = 1.0  # s after the restart of the process within which a client has detected its lost connection


@dataclass(slots=True)
class InterruptedCalls:
    """Transcripts by the fault that interrupted them."""

    unaffected: list[TokenTranscript] = field(default_factory=list)  # no connection of theirs is known to be lost
    by_envoy: list[TokenTranscript] = field(default_factory=list)  # active through an Envoy when it died; SDK and plain
    by_edge: list[TokenTranscript] = field(default_factory=list)  # plain calls that failed when an edge died

    @property
    def excused(self) -> list[TokenTranscript]:
        """Plain calls whose failure a fault explains."""
        return [each for each in (*self.by_envoy, *self.by_edge) if each.is_plain and each.failure_text]

    @property
    def judged(self) -> list[TokenTranscript]:
        """All other requests; none of them may fail."""
        excused = {each.request_id for each in self.excused}
        return [each for each in (*self.unaffected, *self.by_envoy, *self.by_edge) if each.request_id not in excused]


def find_interrupted_calls(
    transcripts: Sequence[TokenTranscript],
    faults: Sequence[InjectedFault],
    edges_by_request: Mapping[str, Collection[str]],
) -> InterruptedCalls:
    """`edges_by_request`: the edges that logged the end of each request; an edge killed before that has not."""
    calls = InterruptedCalls()
    for transcript in transcripts:
        overlapping = [fault for fault in faults if fault.overlaps(transcript.started_at, transcript.ended_at)]
        edges = edges_by_request.get(transcript.request_id, ())
        if any(_is_cut_by_envoy(fault, transcript) for fault in overlapping):
            calls.by_envoy.append(transcript)
        elif any(_is_cut_by_edge(fault, transcript, edges) for fault in overlapping):
            calls.by_edge.append(transcript)
        else:
            calls.unaffected.append(transcript)
    return calls


def _is_cut_by_envoy(fault: InjectedFault, transcript: TokenTranscript) -> bool:
    if not fault.name.startswith("envoy") or transcript.via not in (fault.name, ANY_ENVOY):
        return False
    return not (transcript.is_plain and transcript.failure_text) or _explains_failure(fault, transcript)


def _is_cut_by_edge(fault: InjectedFault, transcript: TokenTranscript, edges: Collection[str]) -> bool:
    is_plain_failure = transcript.is_plain and bool(transcript.failure_text)
    is_elsewhere = bool(set(edges) - {fault.name})  # the dead edge may have logged the end a moment before
    return (
        fault.name.startswith("edge") and is_plain_failure and not is_elsewhere and _explains_failure(fault, transcript)
    )


def _explains_failure(fault: InjectedFault, transcript: TokenTranscript) -> bool:
    """Whether a connection was lost at the time of the fault."""
    return transcript.lost_connection and fault.injected_at <= transcript.ended_at <= fault.recovered_at + NOTICE_S


def interruption_lines(
    calls: InterruptedCalls, faults: Sequence[InjectedFault], references: Sequence[TokenTranscript]
) -> list[CardLine]:
    received = check_transcripts(calls.excused, references)
    through_envoy = [each for each in calls.by_envoy if not each.is_plain]
    routing_faults = [fault for fault in faults if fault.name.startswith("routing")]
    beside_routing = [
        each
        for each in calls.judged
        if each.via and any(fault.overlaps(each.started_at, each.ended_at) for fault in routing_faults)
    ]
    return [
        reported("plain calls interrupted by the death of their Envoy", _failed(calls.by_envoy)),
        reported("plain calls interrupted by the death of their edge", _failed(calls.by_edge)),
        exactly("of them: tokens missing, doubled, reordered or changed before", _token_errors(received), 0),
        reported("SDK requests active through an Envoy when it died", len(through_envoy)),
        exactly("of them failed", _failed(through_envoy), 0),
        reported("requests active through an Envoy when its routing died", len(beside_routing)),
        exactly("of those failed", _failed(beside_routing), 0),
    ]


def _failed(transcripts: Sequence[TokenTranscript]) -> int:
    return sum(bool(each.failure_text) for each in transcripts)


def _token_errors(findings: TranscriptFindings) -> int:
    return findings.missing + findings.duplicated + findings.reordered + findings.changed


def interruption_charge_lines(
    baseline: Sequence[TokenTranscript],
    calls: InterruptedCalls,
    charges: Sequence[LedgerCharge],
    request_by_ticket: Mapping[str, str],
) -> list[CardLine]:
    """Exact charges of unaffected requests, and the charges of the others beyond the tokens that their clients saw."""
    groups = [*baseline, *calls.unaffected], calls.by_envoy, calls.by_edge
    group_by_request = {each.request_id: index for index, group in enumerate(groups) for each in group}
    rows: tuple[list[LedgerCharge], ...] = ([], [], [])
    for row in charges:
        rows[group_by_request.get(request_by_ticket.get(row.ticket_id, ""), 0)].append(row)
    unaffected, by_envoy, by_edge = (
        check_charges(group, group_rows, request_by_ticket) for group, group_rows in zip(groups, rows, strict=True)
    )
    return [
        *charge_lines(unaffected),
        reported("requests interrupted by the death of an Envoy", len(calls.by_envoy)),
        exactly("of them: tokens seen and not charged", by_envoy.undercharged_tokens, 0),
        exactly("of them: tickets charged twice", by_envoy.double_charged_tickets, 0),
        reported("of them: tokens generated and lost on the way, charged", by_envoy.overcharged_tokens),
        reported("of them: prompts charged again", by_envoy.double_charged_prompts),
        exactly(
            "plain calls interrupted by their edge: tokens charged beyond those seen", by_edge.overcharged_tokens, 0
        ),
        reported("plain calls interrupted by their edge: tokens seen and not charged", by_edge.undercharged_tokens),
    ]
