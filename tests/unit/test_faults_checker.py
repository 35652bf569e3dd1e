"""The checker finds each kind of violation, and none in a correct world."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.faults.checks import oracle
from penstock.faults.checks.allowed_failures import Interval
from penstock.faults.checks.checker import (
    FIGURES_ZERO_AT_REST,
    LedgerRow,
    check_answers,
    check_charges,
    check_poison,
    check_residue,
    check_token_counts,
    check_totals,
    check_wasted_work,
)
from penstock.faults.checks.invariants import FrameInvariants
from penstock.faults.failpoints import FAILPOINTS
from penstock.faults.mutations import plan_world
from penstock.faults.plan import PlannedRequest, PlannedTokenCount
from penstock.faults.world.clients.clients import ClientTranscript, TokenCountResult
from penstock.mesh.v1.admission_pb2 import AdmitRequest, Reserve, Settle
from penstock.mesh.v1.queue_pb2 import Enqueue, SubmitRequest
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.mesh.v1.worker_pb2 import ExecuteRequest, Start
from penstock.v1.inference_pb2 import Sampling

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

PLANNED_REQUEST = PlannedRequest(starts_at=0.0, prompt=(1, 2, 3, 4), max_output_tokens=6, seed=7, ignore_eos=True)
EXPECTED_ANSWER = oracle.expected_answer(PLANNED_REQUEST.prompt, 7, 6, ignore_eos=True, stops=())
NEW = oracle.expected_answer(PLANNED_REQUEST.prompt, 7, 6, ignore_eos=True, stops=(), version=1)
VERSIONS = {"old": 0, "new": 1}  # by digest


def transcript(**changes):
    given = {
        "request": PLANNED_REQUEST,
        "token_ids": list(EXPECTED_ANSWER.token_ids),
        "indexes": list(range(6)),
        "text": EXPECTED_ANSWER.text,
        "seed": 7,
        "prompt_tokens": 4,
        "usage": (4, 6),
        "finish_reason": "length",
        "attempts": 1,
        "has_ended": True,
    }
    return ClientTranscript(**{**given, **changes})


def ledger_row(**changes):
    return LedgerRow("r1", "t1", 4, 6, 4, 6, "length", "")._replace(**changes)


def kinds(violations):
    return {each.kind for each in violations}


def test_a_correct_answer_has_no_violation():
    assert list(check_answers([transcript()])) == []
    assert list(check_charges([transcript()], [ledger_row()], {4: 6})) == []


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"has_ended": False}, "endless"),
        ({"token_ids": EXPECTED_ANSWER.token_ids[::-1]}, "changed"),
        ({"token_ids": EXPECTED_ANSWER.token_ids[:5], "indexes": list(range(5))}, "changed"),
        ({"text": EXPECTED_ANSWER.text + "x"}, "changed"),
        ({"finish_reason": "stop"}, "changed"),
        ({"indexes": [0, 1, 1, 2, 3, 4]}, "order"),
        ({"indexes": [0, 2, 1, 3, 4, 5]}, "order"),
        ({"usage": (4, 5)}, "usage"),
        ({"usage": (5, 6)}, "usage"),
        ({"seed": 8}, "changed"),
        ({"finish_reason": "", "failure_text": "UNAVAILABLE X: y", "failure_reason": "X"}, "failed"),
    ],
)
def test_a_wrong_answer_is_found(changes, kind):
    assert kind in kinds(check_answers([transcript(**changes)]))


def test_each_token_must_have_its_likeliest_tokens():
    request, ids = replace(transcript().request, logprobs=True), EXPECTED_ANSWER.token_ids
    likeliest = [each for token_id in ids for each in (token_id, token_id + 1)]
    requested = {"request": request, "logprobs": len(ids)}
    assert list(check_answers([transcript(**requested, top_token_ids=likeliest)])) == []
    for wrong in (likeliest[:-2], likeliest[1:], [*likeliest, 0], ids):
        assert kinds(check_answers([transcript(**requested, top_token_ids=wrong)])) == {"logprobs"}


def test_a_cancelled_answer_must_be_a_prefix():
    part = transcript(
        token_ids=EXPECTED_ANSWER.token_ids[:2],
        indexes=[0, 1],
        text="",
        finish_reason="",
        usage=None,
        has_cancelled=True,
    )
    assert list(check_answers([part])) == []
    part.token_ids[1] += 1
    assert kinds(check_answers([part])) == {"changed"}


def test_a_failure_is_allowed_by_its_reason_within_its_intervals():
    lost = {"failure_text": "UNAVAILABLE AUTH_LOST: x", "failure_reason": "AUTH_LOST", "retry_after": 1.0}
    failed = transcript(finish_reason="", usage=None, ended_at=2.0, **lost)
    assert list(check_answers([failed], {"AUTH_LOST": [Interval(0.0, 2.0)]})) == []
    assert kinds(check_answers([failed], {"AUTH_LOST": [Interval(0.0, 1.9), Interval(2.1, 3.0)]})) == {"failed"}
    assert kinds(check_answers([failed], {"OTHER": [Interval(0.0, 2.0)]})) == {"failed"}


def test_a_failure_without_a_retry_delay_is_not_allowed():
    lost = {"finish_reason": "", "usage": None, "ended_at": 2.0, "failure_text": "UNAVAILABLE x"}
    without_retry_delay = transcript(**lost, failure_reason="QUEUE_LOST")
    own = transcript(**lost, failure_reason="CONNECTION_LOST")  # the client's own reason
    allowed = {reason: [Interval(0.0, 2.0)] for reason in ("QUEUE_LOST", "CONNECTION_LOST")}
    assert kinds(check_answers([without_retry_delay], allowed)) == {"failed"}
    assert list(check_answers([own], allowed)) == []


def test_a_lost_connection_may_end_the_last_attempt_after_rejections_that_are_allowed():
    lost = {"finish_reason": "", "usage": None, "ended_at": 2.0, "failure_text": "UNAVAILABLE x"}
    lost["failure_reason"] = "CONNECTION_LOST"
    rejected = {"STORE_UNAVAILABLE": [Interval(0.0, 1.0)]}
    assert list(check_answers([transcript(**lost, attempts=5)], rejected)) == []
    assert kinds(check_answers([transcript(**lost, attempts=4)], rejected)) == {"failed"}
    assert kinds(check_answers([transcript(**lost, attempts=5)], {"STORE_UNAVAILABLE": []})) == {"failed"}


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [ledger_row(output_tokens=5)],
        [ledger_row(), ledger_row(reservation_id="r2")],
        [ledger_row(), ledger_row(reservation_id="r2", ticket_id="t2", answer_id="t1", output_tokens=0)],
        [ledger_row(), ledger_row(reservation_id="r2", ticket_id="t2", output_tokens=0)],
        [ledger_row(outcome="cancelled")],
        [ledger_row(prompt_tokens=3)],
        [ledger_row(output_tokens=7)],
        [
            ledger_row(),
            ledger_row(reservation_id="r3", ticket_id="t3", reserved_prompt=9, prompt_tokens=0, output_tokens=0),
        ],
        [ledger_row(outcome="lost")],
    ],
)
def test_wrong_charges_are_found(rows):
    assert kinds(check_charges([transcript()], rows, {4: 6})) == {"charge"}


def counted(**changes):
    return TokenCountResult(
        **{
            "request": PlannedTokenCount(starts_at=0.0, prompt=(3, 3)),
            "token_ids": [3, 3],
            "has_ended": True,
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"has_ended": False}, "endless"),
        ({"token_ids": [3]}, "changed"),
        ({"token_ids": [], "failure_text": "INTERNAL", "failure_reason": "INTERNAL"}, "failed"),
    ],
)
def test_a_token_count_is_right_or_fails_for_an_allowed_reason(changes, kind):
    assert list(check_token_counts([counted()])) == []
    assert kinds(check_token_counts([counted(**changes)])) == {kind}
    failed = counted(token_ids=[], failure_text="UNAVAILABLE", failure_reason="AUTH_LOST", retry_after=1.0)
    assert list(check_token_counts([failed], {"AUTH_LOST": [Interval(0.0, 1.0)]})) == []


def poison(**changes):
    failure = {"failure_text": "INTERNAL ENGINE_CRASHED", "failure_reason": "ENGINE_CRASHED"}
    no_output = {"token_ids": [], "indexes": [], "text": "", "usage": None, "finish_reason": ""}
    return transcript(**{"request": replace(PLANNED_REQUEST, crash_token_index=0), **no_output, **failure, **changes})


def test_a_poison_request_may_end_after_two_crashes_on_one_worker():
    assert list(check_answers([poison()])) == []
    assert kinds(check_answers([poison(request=PLANNED_REQUEST)])) == {"failed"}
    assert list(check_poison([poison()], {4: ["w0", "w0"]})) == []


@pytest.mark.parametrize(
    ("changes", "workers"),
    [
        ({}, ["w0", "w1"]),
        ({}, ["w0", "w0", "w0"]),
        ({"failure_reason": "ENGINE_DIED"}, ["w0"]),
        ({"finish_reason": "length", "failure_reason": ""}, []),
    ],
)
def test_a_poison_request_with_more_crashes_or_another_error_is_found(changes, workers):
    assert kinds(check_poison([poison(**changes)], {4: workers})) == {"poison"}


def test_a_poison_request_may_fail_before_it_crashes_an_engine():
    rejected = poison(failure_reason="AUTH_LOST", ended_at=2.0, retry_after=1.0)
    assert list(check_poison([rejected], {}, allowed={"AUTH_LOST": [Interval(0.0, 2.0)]})) == []
    assert kinds(check_poison([rejected], {}, allowed={"AUTH_LOST": [Interval(0.0, 1.0)]})) == {"poison"}


def test_a_poison_request_may_fail_because_its_client_stopped_reading():
    slow = {"failure_text": "ABORTED CLIENT_TOO_SLOW", "failure_reason": "CLIENT_TOO_SLOW"}
    stalled = replace(PLANNED_REQUEST, crash_token_index=4, stall_after_tokens=2)
    assert list(check_poison([poison(request=stalled, **slow)], {})) == []
    assert kinds(check_poison([poison(**slow)], {})) == {"poison"}


def test_each_stop_of_a_worker_allows_further_crashes():
    assert list(check_poison([poison()], {4: ["w0", "w1", "w1"]}, worker_stops=1)) == []
    assert kinds(check_poison([poison()], {4: ["w0", "w1", "w2"]}, worker_stops=1)) == {"poison"}


LOST_CHARGE = {"outcome": "lost", "prompt_tokens": 0, "output_tokens": 0}


def test_an_answer_whose_edge_died_before_the_settlement_is_charged_nothing():
    whole_and_lost = [transcript()], [ledger_row(**LOST_CHARGE)], {4: 6}
    assert list(check_charges(*whole_and_lost, last_tickets={4: "t1"})) == []
    assert kinds(check_charges(*whole_and_lost)) == {"charge"}


def test_a_retried_request_whose_edge_died_is_charged_nothing():
    assert (
        list(check_charges([transcript(attempts=2)], [ledger_row(**LOST_CHARGE)], {4: 6}, last_tickets={4: "t1"})) == []
    )


def test_a_resumed_answer_is_charged_by_the_next_edge_unless_that_died_as_well():
    resumed = transcript(attempts=2)
    continuation = ledger_row(reservation_id="r2", ticket_id="t2", answer_id="t1")
    without = [ledger_row(**LOST_CHARGE)]
    assert list(check_charges([resumed], [*without, continuation], {4: 6}, last_tickets={4: "t2"})) == []
    assert kinds(check_charges([resumed], without, {4: 6}, last_tickets={4: "t2"})) == {"charge"}
    assert (
        list(check_charges([resumed], [*without, continuation._replace(**LOST_CHARGE)], {4: 6}, last_tickets={4: "t2"}))
        == []
    )


def test_the_last_ticket_of_a_request_is_its_last_new_one():
    monitor = FrameInvariants({4: PLANNED_REQUEST}, VERSIONS, lambda: 0.0)
    for ticket_id in ("t1", "t2", "t1"):
        monitor.on_frame("reserve", AdmitRequest(reserve=Reserve(request_id=ticket_id, prompt_tokens=4)))
    assert monitor.last_tickets == {4: "t2"}
    assert monitor.violations == []


def test_charged_tokens_that_no_engine_generated_are_found():
    assert kinds(check_charges([transcript()], [ledger_row()], {4: 5})) == {"charge"}


def test_balances_must_equal_the_sums_of_the_ledger():
    assert list(check_totals([ledger_row(), ledger_row()], (8, 12, 2))) == []
    assert list(check_totals([], (None, None, None))) == []
    assert kinds(check_totals([ledger_row(), ledger_row()], (8, 18, 2))) == {"charge"}


def test_work_after_a_cancel_is_waste_except_for_its_delay():
    left = transcript(has_cancelled=True, ended_at=1.0)
    assert list(check_wasted_work([left], {4: 1.05}, 0.1)) == []
    assert list(check_wasted_work([transcript(ended_at=1.0)], {4: 9.0}, 0.1)) == []
    assert kinds(check_wasted_work([left], {4: 1.2}, 0.1)) == {"waste"}


def test_remaining_state_and_a_missing_figure_are_leaks():
    clean = {tier: (tier, dict.fromkeys(names, 0.0)) for tier, names in FIGURES_ZERO_AT_REST.items()}
    assert list(check_residue(clean)) == []
    for tier, names in FIGURES_ZERO_AT_REST.items():
        for name in names:
            assert kinds(check_residue({**clean, tier: (tier, {**clean[tier][1], name: 1.0})})) == {"leak"}
            without = {each: 0.0 for each in names if each != name}
            assert kinds(check_residue({**clean, tier: (tier, without)})) == {"leak"}


def start(**changes):
    given = {"lease_id": "l1", "ticket_id": "t1", "token_ids": PLANNED_REQUEST.prompt, "max_output_tokens": 6}
    given["model"] = "m@old"
    return ExecuteRequest(start=Start(**{**given, "sampling": Sampling(seed=7), **changes}))


def resumed(count, **changes):
    ids = [*PLANNED_REQUEST.prompt, *EXPECTED_ANSWER.token_ids[:count]]
    return start(**{"lease_id": "l2", "token_ids": ids, "emitted": count, "max_output_tokens": 6 - count, **changes})


def violations_of(kind, *frames, period_s=1.0):
    """Return the violations of frames of which one is sent every `period_s`."""
    times = itertools.count(step=period_s)
    monitor = FrameInvariants({4: PLANNED_REQUEST}, VERSIONS, lambda: next(times))
    for frame in frames:
        monitor.on_frame(kind, frame)
    return monitor.violations


def test_a_run_that_resumes_at_its_position_is_correct():
    assert violations_of("start", start(), resumed(2)) == []


@pytest.mark.parametrize(
    "second",
    [
        resumed(2, sampling=Sampling(seed=8)),
        resumed(2, max_output_tokens=6),
        resumed(2, emitted=1),
        resumed(2, token_ids=[*PLANNED_REQUEST.prompt, 0, 0]),
        resumed(2, model="m@new"),
        resumed(2, model="m@other"),
        start(ticket_id="t2"),
    ],
)
def test_a_run_that_resumes_with_other_fields_is_found(second):
    assert kinds(violations_of("start", start(), second)) == {"frame"}


def test_an_answer_is_compared_with_that_of_its_version():
    new = transcript(version=1, token_ids=list(NEW.token_ids), text=NEW.text)
    assert list(check_answers([new])) == []
    assert kinds(check_answers([replace(new, version=0)])) == {"changed"}
    mixed = [*EXPECTED_ANSWER.token_ids[:3], *NEW.token_ids[3:]]
    for version in oracle.VERSIONS:
        assert "changed" in kinds(check_answers([transcript(version=version, token_ids=mixed)]))


def test_versions_differ_in_their_letters_and_in_their_answers():
    assert oracle.letter_ids(oracle.text_of((1, 2), 0), 1) != (1, 2)
    assert oracle.letter_ids(oracle.text_of((1, 2), 1), 1) == (1, 2)
    assert EXPECTED_ANSWER.token_ids != NEW.token_ids
    assert len(oracle.versions_by_digest(8)) == len(oracle.VERSIONS)


def test_a_ticket_keeps_its_place_in_the_queue_over_attempts():
    def enqueue(**fields):
        return SubmitRequest(enqueue=Enqueue(tickets=[Ticket(ticket_id="t1", **fields)]))

    first = enqueue(attempt=1)
    assert violations_of("enqueue", first, enqueue(attempt=2, age_nanos=1_010_000_000)) == []
    assert kinds(violations_of("enqueue", first, enqueue(attempt=2, age_nanos=10_000_000))) == {"frame"}, "anew"
    assert kinds(violations_of("enqueue", first, enqueue(attempt=2, age_nanos=9_000_000_000))) == {"frame"}, "too old"
    assert kinds(violations_of("enqueue", enqueue(attempt=2), first, period_s=0.0)) == {"frame"}


def test_repeated_settlements_of_a_reservation_must_be_equal():
    one, other = (AdmitRequest(settle=Settle(reservation_id="r1", output_tokens=count)) for count in (3, 4))
    assert violations_of("settle", one, one) == []
    assert kinds(violations_of("settle", one, other)) == {"frame"}


@given(st.lists(st.integers(0, 25), min_size=1, max_size=20), st.integers(0, 2**64 - 1), st.integers(1, 24))
def test_the_expected_answer_of_a_shorter_request_is_a_prefix(prompt, seed, tokens):
    longer = oracle.expected_answer(prompt, seed, 24, ignore_eos=True, stops=())
    shorter = oracle.expected_answer(prompt, seed, tokens, ignore_eos=True, stops=())
    assert longer.token_ids[:tokens] == shorter.token_ids
    assert shorter.finish_reason == "length"


def test_a_stop_string_ends_the_expected_answer_before_it():
    stop = EXPECTED_ANSWER.text[2:4]
    answer = oracle.expected_answer(PLANNED_REQUEST.prompt, 7, 6, ignore_eos=True, stops=(stop,))
    assert answer.finish_reason == "stop"
    assert answer.text == EXPECTED_ANSWER.text[: EXPECTED_ANSWER.text.find(stop)]


def test_a_seed_plans_the_same_world_each_time_and_another_seed_another():
    assert plan_world(5) == plan_world(5)
    assert len({plan_world(seed) for seed in range(50)}) == 50


def test_requests_of_one_world_have_prompts_of_different_lengths():
    for seed in range(200):
        lengths = [len(request.prompt) for request in plan_world(seed).requests]
        assert len(set(lengths)) == len(lengths)


def test_there_are_more_than_forty_failpoints():
    assert len(set(FAILPOINTS)) == len(FAILPOINTS) > 40


def test_a_request_that_is_read_to_its_end_is_distinguished_from_a_cancelled_one():
    assert PLANNED_REQUEST.is_read_to_end
    for leaving in ({"cancel_after_tokens": 0}, {"cancel_after_s": 0.1}, {"timeout_s": 0.1}):
        assert not replace(PLANNED_REQUEST, **leaving).is_read_to_end
