"""Only the death of its own Envoy or of its edge explains the failure of a plain call."""

import pytest

from penstock.bench.transcript import TokenTranscript
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.checks.interrupted_calls import (
    ANY_ENVOY,
    find_interrupted_calls,
    interruption_charge_lines,
    interruption_lines,
)
from penstock.proofs.checks.ledger import LedgerCharge

REFERENCE = TokenTranscript(
    number=0, request_id="calm", started_at=0.0, indexes=[0, 1], token_ids=[5, 6], finish_reason="STOP"
)


def fault(name):
    return InjectedFault(
        name=name,
        kind="SIGKILL",
        injected_at=10.0,
        recovered_at=14.0,
        has_taken_effect=True,
        active_requests=1,
        tokens_before=1,
    )


def plain(via="envoy-1", *, started=9.0, ended=10.5, lost=True, **fields):
    failure = {"failure_text": "UNAVAILABLE / CONNECTION_LOST: gone", "lost_connection": lost}
    known = {
        "number": 0,
        "request_id": "plain",
        "started_at": started,
        "ended_at": ended,
        "via": via,
        "is_plain": True,
    }
    return TokenTranscript(**{**known, **failure, **fields})


def sdk(via=ANY_ENVOY, **fields):
    return TokenTranscript(
        **{"number": 0, "request_id": "sdk", "started_at": 9.0, "ended_at": 20.0, "via": via, **fields}
    )


def line(lines, figure):
    (found,) = [each for each in lines if each.figure == figure]
    return found


def test_a_plain_call_interrupted_by_its_envoy_is_not_judged():
    calls = find_interrupted_calls([plain()], [fault("envoy-1")], {})
    assert (len(calls.excused), calls.judged) == (1, [])


@pytest.mark.parametrize(
    ("call", "died"),
    [
        (plain("envoy-2"), "envoy-1"),  # through another Envoy
        (plain(started=1.0, ended=5.0), "envoy-1"),  # ended before the death
        (plain(ended=15.5), "envoy-1"),  # active at the death, and failed long after it for another reason
        (plain(lost=False), "envoy-1"),  # an answer of the mesh, not a lost connection
        (plain(), "routing-1"),
        (plain(), "worker-1"),
        (plain(), "auth"),
        (sdk(failure_text="UNAVAILABLE / CONNECTION_LOST: gone", lost_connection=True, ended_at=10.5), "envoy-1"),
        (sdk(failure_text="UNAVAILABLE / CONNECTION_LOST: gone", lost_connection=True, ended_at=10.5), "edge-1"),
    ],
)
def test_any_other_failure_is_judged(call, died):
    assert find_interrupted_calls([call], [fault(died)], {}).judged == [call]


def test_a_plain_call_interrupted_by_its_edge_is_not_judged_unless_another_edge_served_it():
    assert find_interrupted_calls([plain()], [fault("edge-1")], {}).judged == []
    assert find_interrupted_calls([plain()], [fault("edge-1")], {"plain": {"edge-1"}}).judged == [], (
        "its last frame was on its way"
    )
    assert find_interrupted_calls([plain()], [fault("edge-1")], {"plain": {"edge-2"}}).judged == [plain()]


def test_wrong_tokens_before_the_interruption_are_a_miss():
    calls = find_interrupted_calls([plain(indexes=[0, 1], token_ids=[5, 7])], [fault("envoy-1")], {})
    wrong = line(
        interruption_lines(calls, [], [REFERENCE]), "of them: tokens missing, doubled, reordered or changed before"
    )
    assert (wrong.measured, wrong.is_met) == (1, False)


def test_a_request_that_fails_when_routing_dies_is_a_miss():
    faults = [fault("routing-1")]
    lines = interruption_lines(find_interrupted_calls([plain()], faults, {}), faults, [REFERENCE])
    assert line(lines, "of those failed").measured == 1


def test_tokens_that_an_envoy_lost_may_be_charged_and_received_tokens_are_always_charged():
    request = sdk(indexes=[0, 1], token_ids=[5, 6])
    calls, request_by_ticket = find_interrupted_calls([request], [fault("envoy-1")], {}), {"t": "sdk"}
    charged = interruption_charge_lines([], calls, [LedgerCharge("t", 3, 4, "done")], request_by_ticket)
    assert line(charged, "of them: tokens generated and lost on the way, charged").measured == 2
    assert all(each.is_met for each in charged)
    free = interruption_charge_lines([], calls, [LedgerCharge("t", 3, 1, "done")], request_by_ticket)
    assert not line(free, "of them: tokens seen and not charged").is_met
