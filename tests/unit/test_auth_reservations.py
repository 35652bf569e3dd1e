"""Reservations and quotas: tokens are reserved once, charged once, and within the limits in any order of events."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.bucket import MINUTE_US, to_micros
from penstock.auth.quota.reservation import OUTCOME_LOST, ReservationRequest
from penstock.auth.quota.reservation_table import MAX_LOST_RESERVATIONS, ReservationTable
from penstock.auth.quota.tenant_quota import Balance
from penstock.chassis.errors import QuotaExceeded
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_INTERACTIVE, PRIORITY_STANDARD, PRIORITY_UNSPECIFIED

START_UNIX_S = 1_800_000_000.0
TTL_S = 100.0


def table_of(**limits) -> ReservationTable:
    found = ReservationTable(ttl=TTL_S)
    found.put_tenant(Tenant(tenant_id="acme", **limits), START_UNIX_S)
    return found


def request_of(
    number: int = 1, prompt: int = 10, output: int = 20, *, edge: str = "edge-1", tenant: str = "acme"
) -> ReservationRequest:
    return ReservationRequest(
        request_id=f"request-{number}",
        tenant_id=tenant,
        key_id="k",
        edge_id=edge,
        model="m",
        prompt_tokens=prompt,
        max_output_tokens=output,
    )


def reserve(table: ReservationTable, number: int = 1, prompt: int = 10, output: int = 20, *, now=START_UNIX_S, **more):
    return table.reserve(request_of(number, prompt, output, **more), f"reservation-{number}", now)


def test_a_reservation_holds_prompt_and_most_output_until_it_is_settled():
    table = table_of()
    reserve(table)
    assert repr(table) == "<ReservationTable 1 tenants, 1 reservations, 30 tokens>"
    charge = table.settle("reservation-1", 10, 7, "stop", START_UNIX_S + 1)
    assert (charge.prompt_tokens, charge.output_tokens, charge.outcome) == (10, 7, "stop")
    assert repr(table) == "<ReservationTable 1 tenants, 0 reservations, 0 tokens>"
    assert table.quota("acme").balance == Balance("acme", 0, 0, 10, 7, 1)


def test_settling_twice_charges_once():
    table = table_of()
    reserve(table)
    assert table.settle("reservation-1", 10, 7, "stop", START_UNIX_S)
    assert table.settle("reservation-1", 10, 7, "stop", START_UNIX_S) is None
    assert table.quota("acme").balance.output_tokens == 7


def test_a_charge_is_at_most_the_reserved_tokens():
    table = table_of()
    reserve(table)
    charge = table.settle("reservation-1", 11, 21, "length", START_UNIX_S)
    assert (charge.prompt_tokens, charge.output_tokens) == (10, 20)


def test_a_rejection_names_every_limit_and_the_time_to_retry():
    table = table_of(requests_per_minute=60, tokens_per_minute=60, concurrent_requests=1)
    reserve(table, 1, 10, 20)
    with pytest.raises(QuotaExceeded) as rejection:
        reserve(table, 2, 10, 50)
    assert rejection.value.reason == "QUOTA_EXCEEDED"
    assert rejection.value.retry_after == 30.0
    assert [(each.subject, each.description) for each in rejection.value.quota_violations] == [
        ("tenant:acme", "60 tokens per minute, 60 requested"),
        ("tenant:acme", "1 concurrent requests, all in progress"),
    ]


def test_a_rejected_request_takes_no_quota():
    table = table_of(requests_per_minute=60, tokens_per_minute=60)
    with pytest.raises(QuotaExceeded):
        reserve(table, 1, 10, 51)
    reserve(table, 2, 10, 50)
    assert table.concurrent_requests == 1


def test_a_request_larger_than_the_limit_has_no_retry_time():
    with pytest.raises(QuotaExceeded, match="request fewer tokens") as rejection:
        reserve(table_of(tokens_per_minute=60), 1, 10, 51)
    assert rejection.value.retry_after is None


def test_requests_count_from_their_start_regardless_of_their_tokens():
    table = table_of(requests_per_minute=2)
    for number in (1, 2):
        reserve(table, number)
        table.settle(f"reservation-{number}", 0, 0, "shed", START_UNIX_S)
    with pytest.raises(QuotaExceeded) as rejection:
        reserve(table, 3)
    assert rejection.value.retry_after == 30.0


def test_the_retry_time_at_the_concurrency_limit_follows_the_mean_duration():
    table = table_of(concurrent_requests=2)
    for number in range(200):
        reserve(table, number)
        table.settle(f"reservation-{number}", 1, 1, "stop", START_UNIX_S + 8.0)
    reserve(table, 1_001), reserve(table, 1_002)
    with pytest.raises(QuotaExceeded) as rejection:
        reserve(table, 1_003)
    assert rejection.value.retry_after == pytest.approx(4.0)


def test_a_cancelled_reservation_leaves_no_trace():
    table = table_of(tokens_per_minute=30, concurrent_requests=1)
    table.cancel(reserve(table))
    reserve(table, 2)
    assert table.quota("acme").balance.requests == 0


def test_an_expired_reservation_is_charged_nothing():
    table = table_of(tokens_per_minute=30)
    reserve(table, 1, 10, 20, now=START_UNIX_S + 50)
    assert table.expire(START_UNIX_S + 50 + TTL_S - 0.001) == []
    [charge] = table.expire(START_UNIX_S + 50 + TTL_S)
    assert (charge.prompt_tokens, charge.output_tokens, charge.outcome) == (0, 0, OUTCOME_LOST)
    assert table.find("acme", "request-1") is None


def test_the_loss_of_an_edge_settles_only_its_own_reservations():
    table = table_of(tokens_per_minute=60)
    reserve(table, 1, edge="edge-1"), reserve(table, 2, edge="edge-2")
    [charge] = table.expire_edge("edge-1", START_UNIX_S)
    assert charge.reservation.request.request_id == "request-1"
    assert table.edges_with_reservations == ["edge-2"]
    with pytest.raises(QuotaExceeded):
        reserve(table, 3, 0, 1)
    assert table.expire_edge("edge-1", START_UNIX_S) == []


def test_an_edge_that_reconnects_late_corrects_the_charge_once():
    table = table_of()
    reserve(table)
    table.expire_edge("edge-1", START_UNIX_S + 30)
    charge = table.settle("reservation-1", 10, 7, "stop", START_UNIX_S + 40)
    assert charge.is_correction
    assert table.settle("reservation-1", 10, 7, "stop", START_UNIX_S + 41) is None
    assert table.quota("acme").balance == Balance("acme", 0, 0, 10, 7, 1)


def test_a_bounded_number_of_lost_reservations_is_kept():
    table = table_of()
    for number in range(MAX_LOST_RESERVATIONS + 1):
        reserve(table, number)
    table.expire_edge("edge-1", START_UNIX_S)
    assert table.settle("reservation-0", 1, 1, "stop", START_UNIX_S) is None
    assert table.settle("reservation-1", 1, 1, "stop", START_UNIX_S)


def test_reservations_survive_a_restart():
    before = table_of(tokens_per_minute=60, concurrent_requests=2)
    first, second = reserve(before, 1), reserve(before, 2, now=START_UNIX_S + 1)
    lost = reserve(table_of(), 3)
    after = ReservationTable(ttl=TTL_S)
    after.put_tenant(before.quota("acme").tenant, START_UNIX_S + 2, before.quota("acme").balance)
    after.restore([second, first], [lost])
    assert repr(after) == repr(before)
    with pytest.raises(QuotaExceeded) as rejection:
        reserve(after, 4, 0, 2, now=START_UNIX_S + 2)
    assert len(rejection.value.quota_violations) == 1  # 2 s have added 2 tokens; the concurrency limit rejects
    assert after.settle("reservation-3", 1, 1, "stop", START_UNIX_S + 2).is_correction
    assert [each.reservation for each in after.expire(START_UNIX_S + TTL_S)] == [first]


def test_a_clock_that_was_set_back_over_a_restart_costs_at_most_a_minute():
    found = ReservationTable(ttl=TTL_S)
    far = to_micros(START_UNIX_S) + 3_600 * 1_000_000
    found.put_tenant(Tenant(tenant_id="acme", tokens_per_minute=60), START_UNIX_S, Balance("acme", 0, far))
    with pytest.raises(QuotaExceeded) as rejection:
        reserve(found, 1, 0, 60)
    assert rejection.value.retry_after == 60.0


def test_new_limits_apply_at_once_and_keep_the_spent_tokens():
    table = table_of(tokens_per_minute=60)
    reserve(table, 1, 30, 30)
    table.put_tenant(Tenant(tenant_id="acme", tokens_per_minute=120), START_UNIX_S)
    reserve(table, 2, 30, 30)
    with pytest.raises(QuotaExceeded):
        reserve(table, 3, 0, 1)
    table.put_tenant(Tenant(tenant_id="acme"), START_UNIX_S)
    reserve(table, 3, 0, 1_000_000)


@pytest.mark.parametrize(
    ("tenant_class", "requested", "granted"),
    [
        (PRIORITY_STANDARD, PRIORITY_UNSPECIFIED, PRIORITY_STANDARD),
        (PRIORITY_STANDARD, PRIORITY_INTERACTIVE, PRIORITY_STANDARD),
        (PRIORITY_STANDARD, PRIORITY_BATCH, PRIORITY_BATCH),
        (PRIORITY_INTERACTIVE, PRIORITY_INTERACTIVE, PRIORITY_INTERACTIVE),
    ],
)
def test_a_class_can_be_lowered_and_never_raised(tenant_class, requested, granted):
    assert Tenant(tenant_id="acme", priority=tenant_class).effective_priority(requested) == granted


class AnyOrder(RuleBasedStateMachine):
    """Two tenants and two edges: in any order of events, totals match the ledger and no limit is exceeded."""

    open_ids = Bundle("open_ids")
    ended_ids = Bundle("ended_ids")

    LIMIT = 100  # tokens per minute, and 4 requests at once

    def __init__(self) -> None:
        super().__init__()
        self.now = START_UNIX_S
        self.table = ReservationTable(ttl=TTL_S)
        for tenant in ("acme", "blue"):
            self.table.put_tenant(
                Tenant(tenant_id=tenant, tokens_per_minute=self.LIMIT, concurrent_requests=4), self.now
            )
        self.number = 0
        self.open = {}  # by reservation id
        self.ledger = {}  # last charge, by reservation id
        self.spent = {"acme": [], "blue": []}  # [time, tokens] of every reservation, as settled by now
        self.entry = {}  # entry in `spent`, by reservation id

    @rule(length=st.integers(0, 60_000_000))
    def wait(self, length):
        self.now = (to_micros(self.now) + length) / 1_000_000

    @rule(
        target=open_ids,
        tenant=st.sampled_from(["acme", "blue"]),
        edge=st.sampled_from(["edge-1", "edge-2"]),
        prompt=st.integers(0, 60),
        output=st.integers(0, 60),
    )
    def reserve(self, tenant, edge, prompt, output):
        self.number += 1
        try:
            made = reserve(self.table, self.number, prompt, output, now=self.now, edge=edge, tenant=tenant)
        except QuotaExceeded as rejection:
            self._check_rejection(rejection, tenant, prompt + output)
            return multiple()
        self.open[made.reservation_id] = made
        self.entry[made.reservation_id] = [to_micros(self.now), prompt + output]
        self.spent[tenant].append(self.entry[made.reservation_id])
        return made.reservation_id

    def _check_rejection(self, rejection, tenant, tokens):
        """Check that the rejection is right, and that its wait suffices unless another request must end first."""
        quota = self.table.quota(tenant)
        is_full = quota.concurrent_requests == 4
        assert (rejection.retry_after is None) == (tokens > self.LIMIT)
        if rejection.retry_after is not None and not is_full:
            quota.check_limits(request_of(0, tokens, 0), self.now + rejection.retry_after)

    @rule(target=ended_ids, reservation_id=consumes(open_ids), prompt=st.integers(0, 60), output=st.integers(0, 60))
    def settle(self, reservation_id, prompt, output):
        was_open = reservation_id in self.open
        charge = self.table.settle(reservation_id, prompt, output, "stop", self.now)
        assert charge is not None
        assert charge.is_correction is not was_open
        if was_open:
            self.entry[reservation_id][1] = charge.prompt_tokens + charge.output_tokens
        self._ended(charge)
        return reservation_id

    @rule(reservation_id=ended_ids)
    def settle_again(self, reservation_id):
        assert self.table.settle(reservation_id, 60, 60, "stop", self.now) is None

    @rule(edge=st.sampled_from(["edge-1", "edge-2"]))
    def lose_edge(self, edge):
        for charge in self.table.expire_edge(edge, self.now):
            self._ended(charge)

    @rule()
    def expire(self):
        for charge in self.table.expire(self.now):
            assert charge.reservation.expires_at <= self.now
            self._ended(charge)

    def _ended(self, charge):
        self.open.pop(charge.reservation.reservation_id, None)
        self.ledger[charge.reservation.reservation_id] = charge

    @invariant()
    def live_reservations_are_counted(self):
        assert self.table.reservation_count == self.table.concurrent_requests == len(self.open)
        assert self.table.reserved_tokens == sum(each.request.tokens for each in self.open.values())
        held = Counter(each.request.tenant_id for each in self.open.values())
        assert all(count <= 4 for count in held.values())

    @invariant()
    def balances_are_the_sums_of_the_ledger(self):
        for quota in self.table.quotas:
            charges = [
                each for each in self.ledger.values() if each.reservation.request.tenant_id == quota.tenant.tenant_id
            ]
            assert quota.balance.requests == len(charges)
            assert quota.balance.prompt_tokens == sum(each.prompt_tokens for each in charges)
            assert quota.balance.output_tokens == sum(each.output_tokens for each in charges)

    @invariant()
    def no_window_exceeds_a_burst_and_the_refill(self):
        for entries in self.spent.values():
            for first, (begin, _) in enumerate(entries):
                used = 0
                for start, tokens in entries[first:]:
                    used += tokens
                    assert used * MINUTE_US <= self.LIMIT * (MINUTE_US + start - begin)


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def test_a_balance_far_beyond_a_limit_fits_into_the_store():
    """Fallback admissions are recorded beyond every limit: 40 of 2**33 tokens at a token per minute end in years."""
    table = table_of(tokens_per_minute=1)
    for number in range(40):
        request = request_of(number, 2**32 - 1, 2**32 - 1)
        table.reserve(request, f"reservation-{number}", START_UNIX_S, is_deferred=True)
    assert table.quota("acme").balance.tokens_full_at == 2**63 - 1
    after = ReservationTable(ttl=TTL_S)
    after.put_tenant(table.quota("acme").tenant, START_UNIX_S, table.quota("acme").balance)
    with pytest.raises(QuotaExceeded):
        reserve(after, 1, 1, 0)
