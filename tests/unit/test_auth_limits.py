"""Limits of tenants, keys and models: a request passes all of them and is counted in all, or it is counted in none."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.auth.identity.policy import NO_POLICY, Limits, Policy, allows_model, named_models
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.bucket import MINUTE_US, to_micros
from penstock.auth.quota.reservation import ReservationRequest
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.chassis.errors import QuotaExceeded

START_UNIX_S = 1_800_000_000.0
TTL_S = 1_000.0


def table_of(
    policy: Policy = NO_POLICY, keys: dict[str, Policy] | None = None, uses=(), balance=None, **limits
) -> ReservationTable:
    found = ReservationTable(ttl=TTL_S)
    tenant = Tenant(tenant_id="acme", policy=policy, **limits)
    quota = found.put_tenant(tenant, START_UNIX_S, balance, uses)
    for key_id, own in (keys or {}).items():
        quota.set_key(key_id, own, START_UNIX_S)
    return found


def request_of(number=1, prompt=10, output=20, *, key="k", model="m", edge="edge-1") -> ReservationRequest:
    return ReservationRequest(
        request_id=f"request-{number}",
        tenant_id="acme",
        key_id=key,
        edge_id=edge,
        model=model,
        prompt_tokens=prompt,
        max_output_tokens=output,
    )


def reserve(table, number=1, prompt=10, output=20, *, now=START_UNIX_S, is_deferred=False, **more):
    request = request_of(number, prompt, output, **more)
    return table.reserve(request, f"reservation-{number}", now, is_deferred=is_deferred)


def rejection_of(table, number=1, prompt=10, output=20, **more) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as raised:
        reserve(table, number, prompt, output, **more)
    return raised.value


def own(**limits) -> Policy:
    return Policy(limits=Limits(**limits))


@pytest.mark.parametrize(
    ("limits", "text", "wait"),
    [
        ({"requests_per_minute": 1}, "1 requests per minute, 1 requested", 60.0),
        ({"input_tokens_per_minute": 15}, "15 input tokens per minute, 10 requested", 20.0),
        ({"output_tokens_per_minute": 30}, "30 output tokens per minute, 20 requested", 20.0),
        ({"tokens_per_minute": 40}, "40 tokens per minute, 30 requested", 30.0),
        ({"concurrent_requests": 1}, "1 concurrent requests, all in progress", 1.0),
    ],
)
def test_each_limit_of_a_key_rejects_with_its_exact_wait(limits, text, wait):
    table = table_of(keys={"k": own(**limits)})
    reserve(table)
    error = rejection_of(table, 2)
    assert (error.reason, error.retry_after) == ("QUOTA_EXCEEDED", wait)
    assert [(each.subject, each.description) for each in error.quota_violations] == [("key:k", text)]
    reserve(table, 3, key="other")


@pytest.mark.parametrize("limits", [{"input_tokens_per_minute": 15}, {"output_tokens_per_minute": 30}])
def test_input_and_output_tokens_of_a_tenant_are_limited_apart(limits):
    table = table_of(own(**limits))
    reserve(table)
    assert [each.subject for each in rejection_of(table, 2).quota_violations] == ["tenant:acme"]


def test_a_limit_of_a_model_restricts_only_its_requests():
    table = table_of(Policy(model_limits=(("m", Limits(requests_per_minute=1)),)))
    reserve(table)
    assert [each.subject for each in rejection_of(table, 2).quota_violations] == ["tenant:acme/model:m"]
    reserve(table, 3, model="other")


def test_a_rejection_names_every_limit_and_waits_for_the_longest():
    policy = Policy(model_limits=(("m", Limits(input_tokens_per_minute=15)),))
    table = table_of(policy, {"k": own(tokens_per_minute=40)}, requests_per_minute=1)
    reserve(table)
    error = rejection_of(table, 2)
    assert [each.subject for each in error.quota_violations] == ["tenant:acme", "key:k", "tenant:acme/model:m"]
    assert error.retry_after == 60.0
    assert "(key:k)" in error.message


def test_a_rejected_request_is_counted_nowhere():
    table = table_of(own(input_tokens_per_minute=100), {"k": own(tokens_per_minute=40, concurrent_requests=2)})
    reserve(table)
    rejection_of(table, 2)
    quota = table.quota("acme")
    assert [each.remaining for each in quota.scope().token_rates(START_UNIX_S)] == [90]
    assert (quota.scope("key:k").concurrent_requests, quota.concurrent_requests) == (1, 1)


def test_a_settlement_gives_the_unused_output_back_exactly():
    table = table_of(keys={"k": own(input_tokens_per_minute=10, output_tokens_per_minute=20, tokens_per_minute=30)})
    reserve(table)
    table.settle("reservation-1", 10, 7, "stop", START_UNIX_S)
    rates = table.quota("acme").scope("key:k").token_rates(START_UNIX_S)
    assert [each.remaining for each in rates] == [0, 13, 13]


def test_a_cancelled_reservation_gives_everything_back():
    table = table_of(keys={"k": own(output_tokens_per_minute=20, concurrent_requests=1)})
    table.cancel(reserve(table))
    reserve(table, 2)


def test_a_lost_reservation_stays_taken():
    table = table_of(keys={"k": own(output_tokens_per_minute=20, concurrent_requests=1)})
    reserve(table)
    table.expire_edge("edge-1", START_UNIX_S)
    assert rejection_of(table, 2).retry_after == 60.0
    assert table.quota("acme").scope("key:k").concurrent_requests == 0


def test_a_fallback_admission_is_recorded_beyond_every_limit():
    table = table_of(Policy(model_limits=(("m", Limits(requests_per_minute=1)),)), {"k": own(tokens_per_minute=30)})
    reserve(table)
    reserve(table, 2, is_deferred=True)
    assert rejection_of(table, 3).retry_after == 120.0  # a second request of the model is to be made up for


def test_new_limits_keep_what_was_used():
    table = table_of(keys={"k": own(tokens_per_minute=60)})
    reserve(table)
    quota = table.quota("acme")
    quota.set_key("k", own(tokens_per_minute=120), START_UNIX_S)
    assert quota.scope("key:k").token_rates(START_UNIX_S)[0].remaining == 90


def test_a_reservation_ends_correctly_after_the_limits_of_its_key_were_removed_and_set_again():
    table = table_of(keys={"k": own(concurrent_requests=1)})
    reserve(table)
    quota = table.quota("acme")
    quota.set_key("k", NO_POLICY, START_UNIX_S)
    assert quota.scope("key:k") is None
    quota.set_key("k", own(concurrent_requests=1), START_UNIX_S)
    rejection_of(table, 2)
    table.settle("reservation-1", 10, 7, "stop", START_UNIX_S)
    assert quota.scope("key:k").concurrent_requests == 0


def test_a_restart_keeps_the_rates_of_keys_and_models_and_their_active_requests():
    policy = Policy(model_limits=(("m", Limits(requests_per_minute=1)),))
    keys = {"k": own(tokens_per_minute=40, concurrent_requests=1)}
    before = table_of(policy, keys)
    made = reserve(before)
    after = table_of(policy, keys, before.quota("acme").uses_of(made))
    after.restore([replace(made, take_run=None)], [])
    error = rejection_of(after, 2)
    assert [each.subject for each in error.quota_violations] == ["key:k", "key:k", "tenant:acme/model:m"]
    assert error.retry_after == 60.0


def test_a_clock_that_was_set_back_blocks_a_key_for_at_most_a_minute_after_a_restart():
    before = table_of(keys={"k": own(tokens_per_minute=30)})
    made = reserve(before, now=START_UNIX_S + 3_600)
    after = table_of(keys={"k": own(tokens_per_minute=30)}, uses=before.quota("acme").uses_of(made))
    assert rejection_of(after, 2).retry_after == 60.0 + 0.0
    reserve(after, 3, now=START_UNIX_S + 60)


def test_a_deleted_key_is_forgotten_with_its_use():
    table = table_of(keys={"k": own(tokens_per_minute=30)})
    reserve(table)
    table.quota("acme").remove_key("k")
    table.quota("acme").set_key("k", own(tokens_per_minute=30), START_UNIX_S)
    reserve(table, 2)


# Shadow mode.


def test_limits_in_shadow_mode_count_what_they_would_refuse_and_refuse_nothing():
    table = table_of(replace(own(input_tokens_per_minute=10), shadow=True), requests_per_minute=1)
    reserve(table)
    reserve(table, 2)
    found = table.quota("acme").shadow_refusals
    assert found == {"tenant:acme requests": 1, "tenant:acme input_tokens": 1}
    assert table.shadow_refusals == 2


def test_a_request_that_shadow_mode_would_have_refused_does_not_delay_the_next_one():
    table = table_of(Policy(shadow=True), requests_per_minute=1)
    for number in range(1, 11):
        reserve(table, number)
    reserve(table, 11, now=START_UNIX_S + 60)
    assert table.shadow_refusals == 9


def test_a_key_in_shadow_mode_is_refused_by_the_limits_of_its_tenant():
    table = table_of(Policy(), {"k": replace(own(requests_per_minute=1), shadow=True)}, tokens_per_minute=60)
    reserve(table), reserve(table, 2)
    error = rejection_of(table, 3)
    assert [each.subject for each in error.quota_violations] == ["tenant:acme"]
    assert table.quota("acme").shadow_refusals == {"key:k requests": 1}  # the refused request counts in no limit


def test_limits_in_shadow_mode_are_not_shown_to_callers():
    table = table_of(Policy(shadow=True), requests_per_minute=1, tokens_per_minute=100)
    assert table.quota("acme").rate_limits(request_of(), START_UNIX_S) is None


# What callers see.


def test_the_tightest_of_all_limits_is_shown():
    policy = Policy(limits=Limits(input_tokens_per_minute=50), model_limits=(("m", Limits(requests_per_minute=5)),))
    table = table_of(policy, {"k": own(requests_per_minute=3)}, requests_per_minute=60, tokens_per_minute=1_000)
    made = reserve(table)
    shown = table.quota("acme").rate_limits(made.request, START_UNIX_S)
    assert (shown.limit_requests, shown.remaining_requests, shown.reset_requests_millis) == (3, 2, 20_000)
    assert (shown.limit_tokens, shown.remaining_tokens, shown.reset_tokens_millis) == (50, 40, 12_000)


def test_a_rejection_has_the_limits_too():
    table = table_of(requests_per_minute=1)
    reserve(table)
    shown = rejection_of(table, 2).rate_limits
    assert (shown.limit_requests, shown.remaining_requests, shown.reset_requests_millis) == (1, 0, 60_000)


def test_a_tenant_without_limits_has_none_to_show():
    assert table_of(concurrent_requests=1).quota("acme").rate_limits(request_of(), START_UNIX_S) is None


@pytest.mark.parametrize(
    ("patterns", "model", "is_allowed"),
    [
        (("m",), "m", True),
        (("m",), "m2", False),
        (("m*",), "m2", True),
        (("a", "qwen*"), "qwen:7b", True),
        (("*",), "anything", True),
        (("m*",), "M2", False),
    ],
)
def test_a_pattern_allows_a_name_or_all_with_its_beginning(patterns, model, is_allowed):
    assert allows_model(patterns, model) is is_allowed


def test_an_error_names_at_most_a_few_of_the_allowed_models():
    assert named_models(f"m{number}" for number in range(9)) == "m0, m1, m2, m3, m4 and 4 more"


# Exactness.

PER_MINUTE = 60
LIMITED = Limits(
    requests_per_minute=12,
    input_tokens_per_minute=PER_MINUTE,
    output_tokens_per_minute=PER_MINUTE,
    tokens_per_minute=90,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([1, 500_000, 4_000_000, 30_000_000])),  # µs
        st.tuples(
            st.just("reserve"),
            st.integers(0, 30),
            st.integers(0, 30),
            st.sampled_from(["k1", "k2"]),
            st.sampled_from(["m1", "m2"]),
        ),
        st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 30), st.integers(0, 30)),
        st.tuples(st.just("lose"), st.sampled_from(["k1", "k2"])),
        st.tuples(st.just("limit"), st.sampled_from([PER_MINUTE, PER_MINUTE // 2])),
    ),
    min_size=10,
    max_size=70,
)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_no_window_of_a_minute_exceeds_a_burst_and_the_refill_in_any_scope(steps):
    """Requests, settlements, losses and changes of limits in any order, for a tenant, two keys and two models."""
    policy = Policy(limits=LIMITED, model_limits=(("m1", LIMITED), ("m2", LIMITED)))
    table = table_of(policy, {"k1": Policy(limits=LIMITED), "k2": Policy(limits=LIMITED)})
    now_us, open_ids, number = to_micros(START_UNIX_S), [], 0
    taken: dict[str, list[list[int]]] = {}  # by scope: time in µs, requests, input, output
    entries: dict[str, list[int]] = {}
    for kind, *values in steps:
        now = now_us / 1e6
        if kind == "wait":
            now_us += values[0]
        elif kind == "reserve":
            prompt, output, key, model = values
            number += 1
            try:
                reserve(table, number, prompt, output, now=now, key=key, model=model, edge=f"edge-{key}")
            except QuotaExceeded:
                continue
            entries[f"reservation-{number}"] = entry = [now_us, 1, prompt, output]
            open_ids.append(f"reservation-{number}")
            for scope in ("", f"key:{key}", f"model:{model}"):
                taken.setdefault(scope, []).append(entry)
        elif kind == "settle" and open_ids:
            reservation_id = open_ids.pop(values[0] % len(open_ids))
            entry = entries[reservation_id]
            was_live = reservation_id in table._live
            table.settle(reservation_id, values[1], values[2], "stop", now)
            if was_live:
                entry[2], entry[3] = min(entry[2], values[1]), min(entry[3], values[2])
        elif kind == "lose":
            table.expire_edge(f"edge-{values[0]}", now)
        elif kind == "limit":
            limits = replace(LIMITED, input_tokens_per_minute=values[0])
            table.quota("acme").set_key("k1", Policy(limits=limits), now)
        for found in taken.values():
            assert_no_window_exceeds(found)


def assert_no_window_exceeds(taken: list[list[int]]) -> None:
    """Check every window that begins and ends with a request. The largest limit of each kind bounds its burst."""
    for column, limits in ((1, [12]), (2, [PER_MINUTE]), (3, [PER_MINUTE])):
        [per_minute] = limits
        for first, (start, *_) in enumerate(taken):
            spent = 0
            for entry in taken[first:]:
                spent += entry[column]
                assert spent * MINUTE_US <= per_minute * (MINUTE_US + entry[0] - start)
    for first, (start, *_) in enumerate(taken):
        spent = 0
        for entry in taken[first:]:
            spent += entry[2] + entry[3]
            assert spent * MINUTE_US <= 90 * (MINUTE_US + entry[0] - start)
