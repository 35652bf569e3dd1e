"""What an edge refuses by itself: no more than the queue would, of nobody else's kind, and not for long."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.chassis.errors import Overloaded
from penstock.edge.admission.rejection_cache import (
    MAX_REJECTION_TTL_S,
    MAX_REJECTIONS_PER_CLASS,
    PROBE_INTERVAL_S,
    RECOVERY_IDLE_S,
    RECOVERY_PROBE_INTERVAL_S,
    TIMEOUT_JITTER_S,
    TIMEOUT_ROUNDING_SHARE,
    RejectionCache,
    RejectionWindow,
    RequestDemand,
    TrafficClass,
    cached_rejection,
)

ANNA = TrafficClass("anna", "m", 2)
ASK = RequestDemand(100, 50, arrived_at=10.0, time_limit=60.0)
TOLD = Overloaded("later", reason="QUEUE_FULL", retry_after=0.4)
SHORT = 0.5 * PROBE_INTERVAL_S  # s; no probe is due


def later(ask=ASK, by=SHORT / 2, **fields):
    """The same from somebody who comes later."""
    return ask._replace(arrived_at=ask.arrived_at + by, **fields)


def refusal(ask=ASK, *, lasts=SHORT, by_deadline=False):
    closing = RejectionWindow(lasts, ask.prompt_tokens, ask.max_output_tokens, by_deadline)
    return cached_rejection(ask, closing, sent_at=ask.arrived_at, overload=TOLD, now=ask.arrived_at)


def refused(*given, kind=ANNA, **fields):
    found = RejectionCache(**fields)
    for each in given or (refusal(),):
        found.add(kind, each, each.demand.arrived_at)
    return found


def test_the_like_of_what_was_refused_is_refused_until_that_is_over():
    found = refused()
    assert found.find(ANNA, later(by=SHORT * 0.99))
    assert not found.find(ANNA, later(by=SHORT))


def test_when_a_refusal_is_over_the_others_wait_for_what_becomes_of_the_first():
    found, first = refused(), later(by=SHORT)
    assert not found.find(ANNA, first)
    assert found.find(ANNA, later(first, by=RECOVERY_PROBE_INTERVAL_S / 2))
    found.on_admitted(ANNA, first)
    assert not found.find(ANNA, later(first, by=RECOVERY_PROBE_INTERVAL_S / 2))


def test_while_the_first_is_not_answered_another_is_let_through_now_and_then():
    found = refused()
    passed = [at for at in range(300) if not found.find(ANNA, later(by=SHORT + at / 1_000))]
    assert passed == [round(1_000 * RECOVERY_PROBE_INTERVAL_S) * each for each in range(len(passed))]
    assert len(passed) > 5


def test_a_refusal_that_is_long_over_is_nothing_to_anybody():
    found = refused()
    assert not found.find(ANNA, later(by=SHORT + RECOVERY_IDLE_S))
    assert not found.find(ANNA, later(by=SHORT + RECOVERY_IDLE_S + 0.1 * RECOVERY_PROBE_INTERVAL_S))


def test_what_is_taken_with_no_room_behind_it_shuts_the_door_again():
    found = refused()
    found.on_admitted(ANNA, later())
    closing = RejectionWindow(duration=SHORT, min_prompt_tokens=50, min_output_tokens=1)
    found.add_windows(ANNA, later(), [closing], sent_at=later().arrived_at, overload=None, now=later().arrived_at)
    error = found.find(ANNA, later(later(), prompt_tokens=50, max_output_tokens=1)).to_error(later().arrived_at)
    assert (error.reason, round(error.retry_after, 6)) == ("OVERLOADED", 0.05)
    assert not found.find(ANNA, later(later(), prompt_tokens=49))


def test_what_is_smaller_in_anything_or_due_earlier_is_for_the_queue_to_judge():
    found = refused()
    assert not found.find(ANNA, later(prompt_tokens=99))
    assert not found.find(ANNA, later(max_output_tokens=49))
    assert not found.find(ANNA, later(time_limit=59.0))
    assert found.find(ANNA, later(time_limit=59.9)), "the same timeout comes rounded"
    assert found.find(ANNA, later(prompt_tokens=101, max_output_tokens=51))


def test_who_has_more_time_passes_where_it_was_time_that_lacked():
    by_time, by_promise = refused(refusal(by_deadline=True)), refused()
    patient = later(time_limit=90.0)
    assert not by_time.find(ANNA, patient)
    assert by_time.find(ANNA, later(time_limit=60.0 + TIMEOUT_JITTER_S / 2))
    assert by_promise.find(ANNA, patient)


def test_nobody_is_refused_for_another_tenant_model_or_class():
    found = refused()
    others = [ANNA._replace(tenant_id="ben"), ANNA._replace(model="n"), ANNA._replace(priority=1)]
    assert not any(found.find(each, later()) for each in others)


def test_what_is_longer_than_what_passes_others_is_for_the_queue_to_judge():
    closing = RejectionWindow(SHORT, ASK.prompt_tokens, 1, max_prompt_tokens=150)
    found = refused(
        cached_rejection(
            ASK._replace(max_output_tokens=1), closing, sent_at=ASK.arrived_at, overload=TOLD, now=ASK.arrived_at
        )
    )
    assert found.find(ANNA, later(prompt_tokens=150))
    assert not found.find(ANNA, later(prompt_tokens=151))
    longer = RejectionWindow(SHORT, ASK.prompt_tokens, 1)
    found.add_windows(ANNA, ASK, [longer], sent_at=ASK.arrived_at, overload=TOLD, now=ASK.arrived_at)
    found.add_windows(ANNA, ASK, [closing], sent_at=ASK.arrived_at, overload=TOLD, now=ASK.arrived_at)
    assert found.find(ANNA, later(prompt_tokens=151)), "it was said of all lengths"


def test_now_and_then_one_goes_to_the_queue_all_the_same():
    found = refused(refusal(lasts=MAX_REJECTION_TTL_S))
    passed = [at for at in range(1, 1_000) if not found.find(ANNA, later(by=at / 1_000))]
    assert len(passed) == round(MAX_REJECTION_TTL_S / PROBE_INTERVAL_S) - 1
    assert passed[0] <= 1_000 * PROBE_INTERVAL_S + 1


def test_the_one_that_is_let_through_is_let_through_when_asked_of_again():
    found, probe = refused(refusal(lasts=MAX_REJECTION_TTL_S)), later(by=1.5 * PROBE_INTERVAL_S)
    assert [found.find(ANNA, probe), found.find(ANNA, probe._replace(prompt_tokens=120))] == [None, None]
    assert found.find(ANNA, later(probe))


def test_what_the_queue_says_to_a_probe_counts():
    found = refused(refusal(lasts=MAX_REJECTION_TTL_S))
    found.on_admitted(ANNA, later(prompt_tokens=120))
    assert not found.find(ANNA, later(prompt_tokens=120))
    assert len(found) == 0


def test_a_large_one_that_is_taken_says_nothing_of_a_refusal_of_a_larger_one():
    found = refused(refusal(ASK._replace(prompt_tokens=1_000)))
    found.on_admitted(ANNA, later(prompt_tokens=500))
    assert found.find(ANNA, later(prompt_tokens=1_000))


def test_no_refusal_holds_for_long_whatever_the_queue_said():
    assert refusal(lasts=600.0).expires_at == ASK.arrived_at + MAX_REJECTION_TTL_S


def test_the_refused_are_told_when_to_come_back_by_what_the_queue_predicted():
    error = refusal().to_error(ASK.arrived_at + 0.1)
    assert (error.reason, round(error.retry_after, 6), error.metadata) == ("QUEUE_FULL", 0.3, {"rejected_by": "edge"})
    assert refusal().to_error(ASK.arrived_at + 9.0).retry_after > 0


def test_sizes_and_kinds_are_bounded_in_number():
    found = refused(
        *(refusal(ASK._replace(prompt_tokens=100 - 2 * each, max_output_tokens=50 + each)) for each in range(30)),
        max_classes=3,
    )
    for number in range(30):
        found.add(ANNA._replace(tenant_id=str(number)), refusal(), ASK.arrived_at)
    assert len(found) == 3
    assert MAX_REJECTIONS_PER_CLASS < 30
    assert not found.find(ANNA, later())


def test_refusals_of_falling_sizes_leave_the_smallest_that_lasts_as_long():
    found = refused(refusal(), refusal(ASK._replace(prompt_tokens=80)))
    assert found.find(ANNA, later(prompt_tokens=80)).demand.prompt_tokens == 80
    assert found.find(ANNA, later()).demand.prompt_tokens == 80


asks = st.builds(
    RequestDemand,
    *(st.integers(1, 4), st.integers(1, 4), st.floats(0, 2), st.sampled_from([1.0, 5.0])),
)
kinds = st.builds(ANNA._replace, tenant_id=st.sampled_from("ab"), priority=st.sampled_from([1, 2]))
events = st.tuples(kinds, asks, st.sampled_from(["refused", "asks", "taken"]), st.floats(0, 2), st.booleans())


@given(st.lists(events, max_size=30))
def test_only_what_a_refusal_of_its_own_kind_covers_is_refused_and_only_while_it_lasts(said):
    found, noted, let_through = RejectionCache(), [], {}
    for kind, ask, what, lasts, by_deadline in sorted(said, key=lambda event: event[1].arrived_at):
        if what == "refused":
            each = refusal(ask, lasts=lasts, by_deadline=by_deadline)
            found.add(kind, each, ask.arrived_at)
            noted.append((kind, each))
        elif what == "taken":
            found.on_admitted(kind, ask)
        elif why := found.find(kind, ask):
            assert any(kind == its and each is why for its, each in noted)
            assert ask.prompt_tokens >= why.demand.prompt_tokens
            assert ask.max_output_tokens >= why.demand.max_output_tokens
            assert ask.deadline >= why.demand.deadline - TIMEOUT_ROUNDING_SHARE * ask.time_limit
            assert why.demand.arrived_at <= ask.arrived_at
            assert ask.arrived_at < why.expires_at or ask.arrived_at < let_through[kind] + RECOVERY_PROBE_INTERVAL_S
        else:
            let_through[kind] = ask.arrived_at


@given(st.lists(st.tuples(kinds, asks, st.floats(0, 5)), max_size=30), kinds)
def test_whoever_keeps_asking_reaches_the_queue_within_the_time_between_probes(said, kind):
    found, at = RejectionCache(), 2.0
    for its, ask, lasts in said:
        found.add(its, refusal(ask, lasts=lasts), min(at, ask.arrived_at))
    came = [step / 100 for step in range(1, 13)]
    assert not all(found.find(kind, RequestDemand(9, 9, at + each, 9.0)) for each in came)
