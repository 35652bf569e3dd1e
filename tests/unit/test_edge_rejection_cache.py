"""The rejection cache: it rejects what the queue would reject, within one traffic class and for a bounded time."""

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

ANNA_CLASS = TrafficClass("anna", "m", 2)
DEMAND = RequestDemand(100, 50, arrived_at=10.0, time_limit=60.0)
QUEUE_FULL = Overloaded("later", reason="QUEUE_FULL", retry_after=0.4)
BEFORE_PROBE_S = 0.5 * PROBE_INTERVAL_S  # no probe is due within this time


def later(demand=DEMAND, by=BEFORE_PROBE_S / 2, **fields):
    """The same demand, `by` seconds later."""
    return demand._replace(arrived_at=demand.arrived_at + by, **fields)


def rejection(demand=DEMAND, *, duration=BEFORE_PROBE_S, by_deadline=False):
    window = RejectionWindow(duration, demand.prompt_tokens, demand.max_output_tokens, by_deadline)
    return cached_rejection(demand, window, sent_at=demand.arrived_at, overload=QUEUE_FULL, now=demand.arrived_at)


def cache_with(*rejections, traffic_class=ANNA_CLASS, **fields):
    cache = RejectionCache(**fields)
    for each in rejections or (rejection(),):
        cache.add(traffic_class, each, each.demand.arrived_at)
    return cache


def test_a_similar_request_is_rejected_until_the_rejection_expires():
    cache = cache_with()
    assert cache.find(ANNA_CLASS, later(by=BEFORE_PROBE_S * 0.99))
    assert not cache.find(ANNA_CLASS, later(by=BEFORE_PROBE_S))


def test_after_expiration_one_recovery_probe_passes_and_others_wait_for_its_result():
    cache, first = cache_with(), later(by=BEFORE_PROBE_S)
    assert not cache.find(ANNA_CLASS, first)
    assert cache.find(ANNA_CLASS, later(first, by=RECOVERY_PROBE_INTERVAL_S / 2))
    cache.on_admitted(ANNA_CLASS, first)
    assert not cache.find(ANNA_CLASS, later(first, by=RECOVERY_PROBE_INTERVAL_S / 2))


def test_recovery_probes_are_repeated_at_intervals_until_one_is_answered():
    cache = cache_with()
    passed = [at for at in range(300) if not cache.find(ANNA_CLASS, later(by=BEFORE_PROBE_S + at / 1_000))]
    assert passed == [round(1_000 * RECOVERY_PROBE_INTERVAL_S) * each for each in range(len(passed))]
    assert len(passed) > 5


def test_a_rejection_that_expired_long_ago_rejects_no_request():
    cache = cache_with()
    assert not cache.find(ANNA_CLASS, later(by=BEFORE_PROBE_S + RECOVERY_IDLE_S))
    assert not cache.find(ANNA_CLASS, later(by=BEFORE_PROBE_S + RECOVERY_IDLE_S + 0.1 * RECOVERY_PROBE_INTERVAL_S))


def test_rejection_windows_of_an_admitted_request_reject_later_ones():
    cache = cache_with()
    cache.on_admitted(ANNA_CLASS, later())
    window = RejectionWindow(duration=BEFORE_PROBE_S, min_prompt_tokens=50, min_output_tokens=1)
    cache.add_windows(ANNA_CLASS, later(), [window], sent_at=later().arrived_at, overload=None, now=later().arrived_at)
    error = cache.find(ANNA_CLASS, later(later(), prompt_tokens=50, max_output_tokens=1)).to_error(later().arrived_at)
    assert (error.reason, round(error.retry_after, 6)) == ("OVERLOADED", 0.05)
    assert not cache.find(ANNA_CLASS, later(later(), prompt_tokens=49))


def test_a_request_that_is_smaller_in_any_size_or_due_earlier_passes():
    cache = cache_with()
    assert not cache.find(ANNA_CLASS, later(prompt_tokens=99))
    assert not cache.find(ANNA_CLASS, later(max_output_tokens=49))
    assert not cache.find(ANNA_CLASS, later(time_limit=59.0))
    assert cache.find(ANNA_CLASS, later(time_limit=59.9)), "the same timeout, rounded by its encoding"
    assert cache.find(ANNA_CLASS, later(prompt_tokens=101, max_output_tokens=51))


def test_a_request_with_a_later_deadline_passes_a_rejection_by_deadline():
    by_deadline_only, by_target = cache_with(rejection(by_deadline=True)), cache_with()
    patient = later(time_limit=90.0)
    assert not by_deadline_only.find(ANNA_CLASS, patient)
    assert by_deadline_only.find(ANNA_CLASS, later(time_limit=60.0 + TIMEOUT_JITTER_S / 2))
    assert by_target.find(ANNA_CLASS, patient)


def test_a_rejection_does_not_apply_to_another_tenant_model_or_priority():
    cache = cache_with()
    others = [ANNA_CLASS._replace(tenant_id="ben"), ANNA_CLASS._replace(model="n"), ANNA_CLASS._replace(priority=1)]
    assert not any(cache.find(each, later()) for each in others)


def test_a_prompt_longer_than_the_window_passes():
    window = RejectionWindow(BEFORE_PROBE_S, DEMAND.prompt_tokens, 1, max_prompt_tokens=150)
    cache = cache_with(
        cached_rejection(
            DEMAND._replace(max_output_tokens=1),
            window,
            sent_at=DEMAND.arrived_at,
            overload=QUEUE_FULL,
            now=DEMAND.arrived_at,
        )
    )
    assert cache.find(ANNA_CLASS, later(prompt_tokens=150))
    assert not cache.find(ANNA_CLASS, later(prompt_tokens=151))
    longer = RejectionWindow(BEFORE_PROBE_S, DEMAND.prompt_tokens, 1)
    cache.add_windows(
        ANNA_CLASS, DEMAND, [longer], sent_at=DEMAND.arrived_at, overload=QUEUE_FULL, now=DEMAND.arrived_at
    )
    cache.add_windows(
        ANNA_CLASS, DEMAND, [window], sent_at=DEMAND.arrived_at, overload=QUEUE_FULL, now=DEMAND.arrived_at
    )
    assert cache.find(ANNA_CLASS, later(prompt_tokens=151)), "the window without an upper bound remains"


def test_one_request_per_probe_interval_passes():
    cache = cache_with(rejection(duration=MAX_REJECTION_TTL_S))
    passed = [at for at in range(1, 1_000) if not cache.find(ANNA_CLASS, later(by=at / 1_000))]
    assert len(passed) == round(MAX_REJECTION_TTL_S / PROBE_INTERVAL_S) - 1
    assert passed[0] <= 1_000 * PROBE_INTERVAL_S + 1


def test_a_probe_passes_each_check_of_the_same_request():
    cache, probe = cache_with(rejection(duration=MAX_REJECTION_TTL_S)), later(by=1.5 * PROBE_INTERVAL_S)
    assert [cache.find(ANNA_CLASS, probe), cache.find(ANNA_CLASS, probe._replace(prompt_tokens=120))] == [None, None]
    assert cache.find(ANNA_CLASS, later(probe))


def test_an_admitted_probe_removes_the_rejection():
    cache = cache_with(rejection(duration=MAX_REJECTION_TTL_S))
    cache.on_admitted(ANNA_CLASS, later(prompt_tokens=120))
    assert not cache.find(ANNA_CLASS, later(prompt_tokens=120))
    assert len(cache) == 0


def test_an_admitted_request_does_not_remove_the_rejection_of_a_larger_one():
    cache = cache_with(rejection(DEMAND._replace(prompt_tokens=1_000)))
    cache.on_admitted(ANNA_CLASS, later(prompt_tokens=500))
    assert cache.find(ANNA_CLASS, later(prompt_tokens=1_000))


def test_no_rejection_lasts_longer_than_the_maximum_ttl():
    assert rejection(duration=600.0).expires_at == DEMAND.arrived_at + MAX_REJECTION_TTL_S


def test_a_rejection_has_the_retry_time_that_the_queue_predicted():
    error = rejection().to_error(DEMAND.arrived_at + 0.1)
    assert (error.reason, round(error.retry_after, 6), error.metadata) == ("QUEUE_FULL", 0.3, {"rejected_by": "edge"})
    assert rejection().to_error(DEMAND.arrived_at + 9.0).retry_after > 0


def test_rejections_and_traffic_classes_are_bounded_in_number():
    cache = cache_with(
        *(rejection(DEMAND._replace(prompt_tokens=100 - 2 * each, max_output_tokens=50 + each)) for each in range(30)),
        max_classes=3,
    )
    for number in range(30):
        cache.add(ANNA_CLASS._replace(tenant_id=str(number)), rejection(), DEMAND.arrived_at)
    assert len(cache) == 3
    assert MAX_REJECTIONS_PER_CLASS < 30
    assert not cache.find(ANNA_CLASS, later())


def test_a_rejection_of_a_smaller_size_replaces_those_of_larger_sizes():
    cache = cache_with(rejection(), rejection(DEMAND._replace(prompt_tokens=80)))
    assert cache.find(ANNA_CLASS, later(prompt_tokens=80)).demand.prompt_tokens == 80
    assert cache.find(ANNA_CLASS, later()).demand.prompt_tokens == 80


demands = st.builds(
    RequestDemand,
    *(st.integers(1, 4), st.integers(1, 4), st.floats(0, 2), st.sampled_from([1.0, 5.0])),
)
traffic_classes = st.builds(ANNA_CLASS._replace, tenant_id=st.sampled_from("ab"), priority=st.sampled_from([1, 2]))
events = st.tuples(
    traffic_classes, demands, st.sampled_from(["rejected", "requested", "admitted"]), st.floats(0, 2), st.booleans()
)


@given(st.lists(events, max_size=30))
def test_a_request_is_rejected_only_by_a_covering_rejection_of_its_class_while_that_lasts(cases):
    cache, added, last_passed_at = RejectionCache(), [], {}
    for traffic_class, demand, event, duration, by_deadline in sorted(cases, key=lambda event: event[1].arrived_at):
        if event == "rejected":
            each = rejection(demand, duration=duration, by_deadline=by_deadline)
            cache.add(traffic_class, each, demand.arrived_at)
            added.append((traffic_class, each))
        elif event == "admitted":
            cache.on_admitted(traffic_class, demand)
        elif found := cache.find(traffic_class, demand):
            assert any(traffic_class == other_class and each is found for other_class, each in added)
            assert demand.prompt_tokens >= found.demand.prompt_tokens
            assert demand.max_output_tokens >= found.demand.max_output_tokens
            assert demand.deadline >= found.demand.deadline - TIMEOUT_ROUNDING_SHARE * demand.time_limit
            assert found.demand.arrived_at <= demand.arrived_at
            assert (
                demand.arrived_at < found.expires_at
                or demand.arrived_at < last_passed_at[traffic_class] + RECOVERY_PROBE_INTERVAL_S
            )
        else:
            last_passed_at[traffic_class] = demand.arrived_at


@given(st.lists(st.tuples(traffic_classes, demands, st.floats(0, 5)), max_size=30), traffic_classes)
def test_repeated_requests_reach_the_queue_within_one_probe_interval(cases, traffic_class):
    cache, at = RejectionCache(), 2.0
    for other_class, demand, duration in cases:
        cache.add(other_class, rejection(demand, duration=duration), min(at, demand.arrived_at))
    offsets_s = [step / 100 for step in range(1, 13)]
    assert not all(cache.find(traffic_class, RequestDemand(9, 9, at + each, 9.0)) for each in offsets_s)
