"""Which requests a dying Envoy or edge cut off from their client, and which of their failures that explains. Pure.

An Envoy that dies closes its connections. An SDK client resumes its answers by `answer_id` through another Envoy, so
its requests must not fail. A plain gRPC client sees its call fail with UNAVAILABLE, or with INTERNAL and `RST_STREAM`
if only the stream was reset, and has to make it again. The same holds for the plain client if the edge behind its Envoy
dies. No other death may be noticed by any client.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.proofs.card import Line, exactly, told
from penstock.proofs.checks.injected_faults import Fault
from penstock.proofs.checks.ledger import Charge, check_charges
from penstock.proofs.checks.transcript import FRONTS, Findings, History, check
from penstock.proofs.lines import charge_lines

LATE = 1.0  # s after the process is back, by which a client has noticed that its connection is lost


@dataclass(slots=True)
class CutOff:
    """Histories by what became of them."""

    whole: list[History] = field(default_factory=list)  # no connection of theirs was lost, that we know of
    by_envoy: list[History] = field(default_factory=list)  # under way through an Envoy when it died; SDK and plain
    by_edge: list[History] = field(default_factory=list)  # plain calls that failed as an edge died

    @property
    def excused(self) -> list[History]:
        """Plain calls whose failure is explained."""
        return [each for each in (*self.by_envoy, *self.by_edge) if each.is_plain and each.failure]

    @property
    def judged(self) -> list[History]:
        """All others: none of them may fail."""
        excused = {each.request_id for each in self.excused}
        return [each for each in (*self.whole, *self.by_envoy, *self.by_edge) if each.request_id not in excused]


def cut_off(histories: Sequence[History], faults: Sequence[Fault], edges_of: Mapping[str, Collection[str]]) -> CutOff:
    """`edges_of`: edges that have logged the end of a request, by request; an edge killed amid it has not."""
    found = CutOff()
    for history in histories:
        covering = [fault for fault in faults if fault.covers(history.started, history.ended)]
        if any(_cuts_at_envoy(fault, history) for fault in covering):
            found.by_envoy.append(history)
        elif any(_cuts_at_edge(fault, history, edges_of.get(history.request_id, ())) for fault in covering):
            found.by_edge.append(history)
        else:
            found.whole.append(history)
    return found


def _cuts_at_envoy(fault: Fault, history: History) -> bool:
    if not fault.name.startswith("envoy") or history.via not in (fault.name, FRONTS):
        return False
    return not (history.is_plain and history.failure) or _is_explained(fault, history)


def _cuts_at_edge(fault: Fault, history: History, edges: Collection[str]) -> bool:
    is_plain_failure = history.is_plain and bool(history.failure)
    is_elsewhere = bool(set(edges) - {fault.name})  # the dead one may have ended the request a moment before
    return fault.name.startswith("edge") and is_plain_failure and not is_elsewhere and _is_explained(fault, history)


def _is_explained(fault: Fault, history: History) -> bool:
    """Whether a connection was lost, and at the time of the fault."""
    return history.lost_connection and fault.at <= history.ended <= fault.recovered_at + LATE


def cut_lines(cut: CutOff, faults: Sequence[Fault], references: Sequence[History]) -> list[Line]:
    before = check(cut.excused, references)
    through = [each for each in cut.by_envoy if not each.is_plain]
    routing = [each for each in faults if each.name.startswith("routing")]
    beside = [
        each for each in cut.judged if each.via and any(fault.covers(each.started, each.ended) for fault in routing)
    ]
    return [
        told("plain calls cut by the death of their Envoy, to be made again", _failed(cut.by_envoy)),
        told("plain calls cut by the death of their edge, to be made again", _failed(cut.by_edge)),
        exactly("of theirs: tokens missing, doubled, reordered or changed before the cut", _wrong(before), 0),
        told("SDK requests through the Envoys under way when one died", len(through)),
        exactly("of them failed", _failed(through), 0),
        told("requests through an Envoy under way when its routing died", len(beside)),
        exactly("of those failed", _failed(beside), 0),
    ]


def _failed(histories: Sequence[History]) -> int:
    return sum(bool(each.failure) for each in histories)


def _wrong(findings: Findings) -> int:
    return findings.missing + findings.doubled + findings.reordered + findings.changed


def cut_charge_lines(
    calm: Sequence[History], cut: CutOff, charges: Sequence[Charge], request_of: Mapping[str, str]
) -> list[Line]:
    """Exact charges of all that were not cut off; what the others were charged beyond what their clients saw."""
    parts = [*calm, *cut.whole], cut.by_envoy, cut.by_edge
    part_of = {each.request_id: place for place, part in enumerate(parts) for each in part}
    rows: tuple[list[Charge], ...] = ([], [], [])
    for row in charges:
        rows[part_of.get(request_of.get(row.ticket_id, ""), 0)].append(row)
    whole, by_envoy, by_edge = (check_charges(part, of, request_of) for part, of in zip(parts, rows, strict=True))
    return [
        *charge_lines(whole),
        told("requests cut off by the death of an Envoy", len(cut.by_envoy)),
        exactly("of theirs: tokens seen and not charged", by_envoy.undercharged, 0),
        exactly("of theirs: tickets charged twice", by_envoy.doubled, 0),
        told("of theirs: tokens made and lost on their way, charged as made", by_envoy.overcharged),
        told("of theirs: prompts charged again", by_envoy.double_charged_prompts),
        exactly("plain calls cut by their edge: tokens charged beyond those seen", by_edge.overcharged, 0),
        told("plain calls cut by their edge: tokens seen and not charged", by_edge.undercharged),
    ]
