"""A plain call's failure is explained only by the death of its own Envoy, or of the edge that had it."""

import pytest

from penstock.proofs.checks.injected_faults import Fault
from penstock.proofs.checks.interrupted_calls import cut_charge_lines, cut_lines, cut_off
from penstock.proofs.checks.ledger import Charge
from penstock.proofs.checks.transcript import FRONTS, History

REFERENCE = History(wish=0, request_id="calm", started=0.0, indexes=[0, 1], token_ids=[5, 6], finish="STOP")


def fault(name):
    return Fault(name=name, kind="SIGKILL", at=10.0, recovered_at=14.0, has_taken_effect=True, under_way=1, tokens=1)


def plain(via="envoy-1", *, started=9.0, ended=10.5, lost=True, **fields):
    failure = {"failure": "UNAVAILABLE / CONNECTION_LOST: gone", "lost_connection": lost}
    known = {"wish": 0, "request_id": "plain", "started": started, "ended": ended, "via": via, "is_plain": True}
    return History(**{**known, **failure, **fields})


def sdk(via=FRONTS, **fields):
    return History(**{"wish": 0, "request_id": "sdk", "started": 9.0, "ended": 20.0, "via": via, **fields})


def line(lines, figure):
    (found,) = [each for each in lines if each.figure == figure]
    return found


def test_a_plain_call_that_its_envoy_took_along_is_not_judged():
    cut = cut_off([plain()], [fault("envoy-1")], {})
    assert (len(cut.excused), cut.judged) == (1, [])


@pytest.mark.parametrize(
    ("call", "died"),
    [
        (plain("envoy-2"), "envoy-1"),  # another Envoy's
        (plain(started=1.0, ended=5.0), "envoy-1"),  # before
        (plain(ended=15.5), "envoy-1"),  # under way at the death, and failed for another reason long after it
        (plain(lost=False), "envoy-1"),  # an answer of the mesh, not a lost connection
        (plain(), "routing-1"),
        (plain(), "worker-1"),
        (plain(), "auth"),
        (sdk(failure="UNAVAILABLE / CONNECTION_LOST: gone", lost_connection=True, ended=10.5), "envoy-1"),
        (sdk(failure="UNAVAILABLE / CONNECTION_LOST: gone", lost_connection=True, ended=10.5), "edge-1"),
    ],
)
def test_any_other_failure_is_judged(call, died):
    assert cut_off([call], [fault(died)], {}).judged == [call]


def test_a_plain_call_that_died_with_its_edge_is_not_judged_unless_another_edge_had_it():
    assert cut_off([plain()], [fault("edge-1")], {}).judged == []
    assert cut_off([plain()], [fault("edge-1")], {"plain": {"edge-1"}}).judged == [], "its last frame was on its way"
    assert cut_off([plain()], [fault("edge-1")], {"plain": {"edge-2"}}).judged == [plain()]


def test_tokens_that_came_wrong_before_the_cut_are_a_miss():
    cut = cut_off([plain(indexes=[0, 1], token_ids=[5, 7])], [fault("envoy-1")], {})
    wrong = line(
        cut_lines(cut, [], [REFERENCE]), "of theirs: tokens missing, doubled, reordered or changed before the cut"
    )
    assert (wrong.measured, wrong.is_met) == (1, False)


def test_a_request_that_fails_as_routing_dies_is_a_miss():
    faults = [fault("routing-1")]
    lines = cut_lines(cut_off([plain()], faults, {}), faults, [REFERENCE])
    assert line(lines, "of those failed").measured == 1


def test_what_an_envoy_lost_on_its_way_is_charged_as_made_and_what_was_seen_is_always_charged():
    request = sdk(indexes=[0, 1], token_ids=[5, 6])
    cut, request_of = cut_off([request], [fault("envoy-1")], {}), {"t": "sdk"}
    charged = cut_charge_lines([], cut, [Charge("t", 3, 4, "done")], request_of)
    assert line(charged, "of theirs: tokens made and lost on their way, charged as made").measured == 2
    assert all(each.is_met for each in charged)
    free = cut_charge_lines([], cut, [Charge("t", 3, 1, "done")], request_of)
    assert not line(free, "of theirs: tokens seen and not charged").is_met
