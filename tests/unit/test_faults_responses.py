"""The checks of stored responses in fault worlds, and the worlds that they pass."""

import pytest

from penstock.faults.checks.checker import LOST_OUTCOME, LedgerRow
from penstock.faults.checks.responses import (
    IN_PROGRESS,
    StoredRow,
    check_response_charges,
    check_response_store,
    check_responses,
)
from penstock.faults.plan import PlannedRequest, PlannedResponse, PlanOverrides, ResponseAction
from penstock.faults.run import run_seed
from penstock.faults.world.clients.response_clients import ResponseTranscript

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

PROMPT, TOKENS = (5, 12, 19), 6
LENGTH = len(PROMPT)
REQUEST = PlannedRequest(starts_at=0.0, prompt=PROMPT, max_output_tokens=TOKENS, seed=7, ignore_eos=True)
WORLDS = 8  # seeds with stored responses


def planned(**fields):
    return PlannedResponse(request=REQUEST, input="fmt", is_background=True, is_streamed=True, **fields)


def ended(status="incomplete", text=None):
    text = planned().expected.text if text is None else text
    usage = {"input_tokens": LENGTH, "output_tokens": TOKENS} if status == "incomplete" else None
    return {"status": status, "error": None, "output": [{"content": [{"text": text}]}], "usage": usage}


def transcript(answer=None, action=ResponseAction.NONE, **fields):
    answer = answer or ended()
    given = {"numbers": [0, 1, 2], "text": planned().expected.text, "audits": [answer, answer]} | fields
    return ResponseTranscript(
        planned=planned(action=action),
        response_id="resp_1",
        is_created=True,
        has_ended=True,
        status=answer["status"],
        answer=answer,
        **given,
    )


def row(output=TOKENS, prompt=LENGTH, outcome="length", ticket="t1"):
    return LedgerRow(f"r{ticket}", ticket, LENGTH, TOKENS, prompt, output, outcome, "")


def kinds(violations):
    return [each.kind for each in violations]


def test_a_response_with_the_same_end_at_every_edge_passes():
    assert list(check_responses([transcript()])) == []


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"numbers": [0, 1, 1]}, "order"),
        ({"numbers": [0, 2]}, "order"),
        ({"text": "no letter of it"}, "changed"),
        ({"audits": [ended(), ended("failed", "")]}, "split"),
        ({"audits": [ended("failed", "")] * 2}, "split"),
        ({"audits": [{"code": 404}] * 2}, "lost"),
        ({"losses": 1}, "moved"),
        ({"is_cancel_late": True}, "late"),
        ({"problems": ["refused"]}, "response"),
    ],
)
def test_what_a_client_must_not_see_is_found(fields, kind):
    assert kind in kinds(check_responses([transcript(**fields)]))


def test_a_response_that_nobody_cancelled_is_found():
    cancelled = ended("cancelled", "")
    assert kinds(check_responses([transcript(cancelled)])) == ["failed"]
    asked = transcript(cancelled, ResponseAction.CANCEL, asks_for_end=True)
    assert kinds(check_responses([asked])) == []


def test_a_deleted_response_that_an_edge_still_has_is_found():
    deleted = transcript(action=ResponseAction.DELETE, asks_for_end=True, is_acknowledged=True)
    assert "deleted" in kinds(check_responses([deleted]))


def test_a_cancel_may_win_over_an_end_that_the_store_does_not_have():
    late = transcript(action=ResponseAction.CANCEL, asks_for_end=True, audits=[ended("cancelled", "")] * 2)
    assert kinds(check_responses([late], has_faults=True)) == ["split"]
    assert kinds(check_responses([late], has_faults=True, was_store_away=True)) == []


@pytest.mark.parametrize(
    "rows",
    [
        [row(), row(ticket="t2")],  # two edges charged it
        [row(), row(prompt=LENGTH, output=0, ticket="t2")],
        [row(output=TOKENS - 1)],
        [],
    ],
)
def test_an_answer_that_is_not_charged_once_is_found(rows):
    assert set(kinds(check_response_charges([transcript()], rows, {LENGTH: 2 * TOKENS}))) == {"charge"}


def test_an_answer_whose_parts_are_charged_at_two_edges_passes():
    rows = [row(output=2), row(prompt=0, output=TOKENS - 2, ticket="t2"), row(0, 0, LOST_OUTCOME, "t3")]
    assert list(check_response_charges([transcript()], rows, {LENGTH: TOKENS})) == []


def test_an_edge_that_dies_before_its_settlement_may_leave_an_answer_uncharged():
    rows, made = [row(0, 0, LOST_OUTCOME)], {LENGTH: TOKENS}
    assert list(check_response_charges([transcript()], rows, made, was_edge_killed=True)) == []
    assert kinds(check_response_charges([transcript()], rows, made)) == ["charge"]


@pytest.mark.parametrize(
    ("lease_until", "is_cancel_requested", "found"), [(9.0, 0, ["endless"]), (11.0, 0, ["lease"]), (9.0, 1, [])]
)
def test_a_response_in_progress_at_rest_is_found(lease_until, is_cancel_requested, found):
    rows = [StoredRow("resp_1", IN_PROGRESS, lease_until, is_cancel_requested)]
    assert kinds(check_response_store(rows, 0, 10.0)) == found


def test_remains_of_a_deleted_response_are_found():
    assert kinds(check_response_store([], 1, 10.0)) == ["deleted"]


def test_worlds_with_stored_responses_keep_their_promises_and_replay_exactly():
    overrides = PlanOverrides(has_responses=True)
    results = [run_seed(seed, overrides) for seed in range(WORLDS)]
    assert {each.plan.seed: each.violations for each in results if each.violations} == {}
    assert all(each.plan.responses for each in results)
    assert run_seed(0, overrides).frame_digest == results[0].frame_digest
