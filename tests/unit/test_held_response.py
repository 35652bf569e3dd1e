"""A response that an edge holds: its settlement waits for the store."""

from types import SimpleNamespace

import pytest

from penstock.edge.lifecycle.effects import Settle
from penstock.edge.lifecycle.memory import MemoryBudget
from penstock.edge.lifecycle.sinks import ResponseBuffer
from penstock.edge.stored.held import HeldResponse
from penstock.edge.stored.stream import ResponseOutput
from penstock.mesh.v1.responses_pb2 import ResponseKey

SETTLEMENT = Settle(5, 8, "length", 2, "w1")
UNCHARGED = Settle(0, 0, "length", 0, "w1")


@pytest.fixture
def held():
    held = HeldResponse(
        key=ResponseKey(tenant_id="acme", response_id="r1"),
        request=None,
        created_at=0,
        is_background=True,
        on_ended=lambda _: None,
        output=ResponseOutput(),
        buffer=ResponseBuffer(MemoryBudget(1 << 20)),
    )
    held.attach(SimpleNamespace(request=SimpleNamespace(handed_over_tokens=None), spec=SimpleNamespace(resume_ids=())))
    return held


def test_a_settlement_is_sent_once_the_store_has_the_end(held):
    sent = []
    held.context.hold_settlement(SETTLEMENT, sent.append)
    assert sent == []
    held.settle()
    held.settle()
    assert sent == [SETTLEMENT]


def test_a_settlement_that_comes_after_the_end_is_stored_is_sent_at_once(held):
    sent = []
    held.settle()
    held.context.hold_settlement(SETTLEMENT, sent.append)
    assert sent == [SETTLEMENT]


def test_an_answer_that_ended_before_its_edge_knew_of_the_takeover_is_not_charged(held):
    sent = []
    held.context.hold_settlement(SETTLEMENT, sent.append)
    held.hand_over(tokens=0)
    held.settle()
    assert sent == [UNCHARGED]
    assert held.context.request.handed_over_tokens == 0  # for a settlement that is still to come


def test_tokens_that_are_stored_at_a_hand_over_are_charged(held):
    sent = []
    held.hand_over(tokens=3)
    held.settle()
    assert held.context.request.handed_over_tokens == 3
    held.context.hold_settlement(SETTLEMENT, sent.append)
    assert sent == [SETTLEMENT]
