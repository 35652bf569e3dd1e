"""The lease and the state of one stored response."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.auth.responses.errors import ResponseLost
from penstock.auth.responses.response import Lease, Placement, Response, Status

LEASE_S = 10.0


def response(**fields):
    values = {"lease_until": LEASE_S, **fields}
    return Response("acme", "r1", "", is_background=True, created_at=0.0, expires_at=100.0, **values)


@pytest.mark.parametrize(
    ("first_index", "count", "expected"),
    [
        (5, 3, Placement.NEXT),
        (0, 5, Placement.STORED),
        (2, 3, Placement.STORED),
        (9, 0, Placement.STORED),
        (4, 2, Placement.OVERLAPPING),
        (0, 6, Placement.OVERLAPPING),
        (6, 1, Placement.GAP),
    ],
)
def test_a_part_is_placed_by_the_tokens_before_it(first_index, count, expected):
    assert response(token_count=5).placement(first_index, count) is expected


def test_a_lease_ends_at_its_time_and_not_before():
    found = response()
    assert found.is_held(LEASE_S - 0.001)
    assert found.is_claimable(LEASE_S)
    assert not found.claim(LEASE_S - 0.001, LEASE_S)
    assert found.claim(LEASE_S, LEASE_S)
    assert (found.epoch, found.lease_until) == (2, 2 * LEASE_S)


def test_a_released_response_is_still_its_holders_until_it_is_claimed():
    found = response()
    assert found.extend(1, 0.0, LEASE_S, release=True) is Lease.HELD
    assert found.is_claimable(0.0)
    assert found.extend(1, 1.0, LEASE_S) is Lease.HELD
    assert not found.is_claimable(1.0)


def test_a_cancelled_response_has_no_holder():
    found = response()
    found.cancel(LEASE_S)
    assert (found.status, found.epoch) == (Status.CANCELLED, 2)
    with pytest.raises(ResponseLost):
        found.check_finish(1, Status.CANCELLED)


class Edges(RuleBasedStateMachine):
    """Two edges that hold one response in turn, and a caller that cancels. Time only advances."""

    @initialize()
    def create(self):
        self.response, self.now = response(), 0.0
        self.known = {"a": 1, "b": 0}  # epoch that each edge has
        self.ends = []  # (edge, status) of finishes that took effect
        self.former_epoch = 0

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, LEASE_S]))
    def pass_time(self, seconds):
        self.now += seconds

    @rule(edge=st.sampled_from("ab"))
    def claim(self, edge):
        was_held = self.response.is_held(self.now)
        if self.response.claim(self.now, LEASE_S):
            assert not was_held
            self.known[edge] = self.response.epoch

    @rule(edge=st.sampled_from("ab"), release=st.booleans())
    def extend(self, edge, release):
        state = self.response.extend(self.known[edge], self.now, LEASE_S, release=release)
        is_holder = self.response.is_in_progress and self.known[edge] == max(self.known.values())
        assert (state is not Lease.LOST) == is_holder
        if state is not Lease.LOST:
            assert self.response.is_held(self.now) != release
            assert (state is Lease.CANCEL_REQUESTED) == self.response.is_cancel_requested

    @rule(edge=st.sampled_from("ab"), status=st.sampled_from([Status.COMPLETED, Status.FAILED, Status.CANCELLED]))
    def finish(self, edge, status):
        self.response.lapse(self.now)
        try:
            if self.response.check_finish(self.known[edge], status):
                self.response.finish(status)
                self.ends.append((edge, status))
        except ResponseLost:
            assert self.ends[-1:] != [(edge, status)] or self.known[edge] < self.response.epoch
        else:
            assert self.ends[-1] == (edge, status)  # the same call again succeeds

    @rule()
    def cancel(self):
        was_held, was_in_progress = self.response.is_held(self.now), self.response.is_in_progress
        self.response.cancel(self.now)
        assert self.response.is_in_progress == (was_held and was_in_progress)

    @invariant()
    def it_ends_once_and_epochs_only_increase(self):
        assert len(self.ends) <= 1
        assert self.response.epoch >= max(self.former_epoch, *self.known.values())
        self.former_epoch = self.response.epoch
        if not self.response.is_in_progress:
            assert not self.response.is_claimable(self.now)
            assert not self.response.is_cancel_requested


TestEdges = Edges.TestCase
