"""Settlements are kept until auth confirms them, and are repeated to the owners of their partitions."""

import pytest

from penstock.edge.lifecycle.effects import Settle
from penstock.edge.upstreams.settlements import Settlements


@pytest.fixture
def sent():
    return []


@pytest.fixture
def settlements(sent):
    def send(partition, frame):
        sent.append((partition, frame.settle.reservation_id))

    settlements = Settlements(send, send)
    for name, partition in (("first", 1), ("second", 2), ("third", 1)):
        settlements.settle(name, Settle(0, 0, "cancelled"), partition)
    return settlements


def test_each_settlement_is_given_to_its_stream_once_and_in_order(settlements, sent):
    assert sent == [(1, "first"), (2, "second"), (1, "third")]


def test_only_settlements_of_cancelled_requests_may_be_delayed():
    at_once, later = [], []
    settlements = Settlements(
        lambda _, frame: at_once.append(frame.settle.outcome), lambda _, frame: later.append(frame.settle.outcome)
    )
    for outcome in ("stop", "length", "cancelled", "shed", "failed"):
        settlements.settle(outcome, Settle(1, 1, outcome), 1)
    assert (at_once, later) == (["stop", "length", "shed", "failed"], ["cancelled"])


def test_a_new_owner_receives_the_unconfirmed_settlements_of_its_partitions(settlements, sent):
    settlements.on_settled("first")
    sent.clear()
    settlements.resend_to_owners({1})
    assert sent == [(1, "third")]


def test_unconfirmed_settlements_are_repeated_where_they_can_be_recorded(settlements, sent):
    before = settlements.reservation_ids
    settlements.on_settled("third")
    sent.clear()
    settlements.resend(before, lambda partition: partition == 1)
    assert sent == [(1, "first")]
    assert len(settlements) == 2
