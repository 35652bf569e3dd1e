"""Flights at some stage, and what tests say to them."""

from dataclasses import replace
from datetime import timedelta

from penstock.edge.flight.effects import (
    Accept,
    Cancelled,
    Enqueue,
    Fail,
    Finish,
    Reserve,
    StartRun,
)
from penstock.edge.flight.flight import Flight
from penstock.edge.flight.plan import Piece, Plan
from penstock.edge.flight.state import FlightLimits
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.worker_pb2 import RunTimes
from penstock.v1.inference_pb2 import Sampling

LIMITS = FlightLimits(max_attempts=3, patience=10.0, receipt_timeout=5.0)
DEADLINE = 100.0
ENDINGS = (Finish, Fail, Cancelled)
TIMES = RunTimes(wait=timedelta(seconds=1), prefill=timedelta(seconds=2), decode=timedelta(seconds=3))
EOS = 7


class Letters:
    """Writes each token as a letter, ends at the letter `stop`, and holds the last one back."""

    def __init__(self, stop=""):
        self.stop = stop
        self.held = ""

    def push(self, token_id):
        text, self.held = self.held, chr(token_id)
        return Piece(text, self.stop) if self.held == self.stop else Piece(text)

    def finish(self):
        text, self.held = self.held, ""
        return text


PLAN = Plan(
    model="tiny",
    prompt_ids=[1, 2, 3],
    max_output_tokens=6,
    sampling=Sampling(seed=1),
    transcript=Letters(),
    eos_ids=frozenset({EOS}),
)


def plan(**changes):
    return replace(PLAN, **{"transcript": Letters(), **changes})


def new_flight():
    return Flight("t1", arrived=0.0, deadline=DEADLINE, limits=LIMITS)


def queued_flight(**changes):
    flight = new_flight()
    assert flight.tokenized(plan(**changes), 1.0) == [Reserve()]
    assert flight.admitted(Identity(tenant_id="acme"), "r1", 2.0) == [Enqueue()]
    return flight


def lease(attempt=1, worker="w1"):
    return Lease(
        lease_id=f"l{attempt}",
        worker_id=worker,
        attempt=attempt,
        ttl=timedelta(seconds=4),
        queue_wait=timedelta(seconds=5),
        placement=timedelta(seconds=1),
    )


def running_flight(**changes):
    flight = queued_flight(**changes)
    assert flight.queued() == [Accept()]
    assert flight.leased(lease(), 10.0) == [StartRun(lease())]
    assert flight.started() == []
    return flight


def give(flight, text, now=12.0):
    """Make the worker send `text`, a token per letter, and return what the client gets."""
    got = []
    for letter in text:
        got += flight.token(len(flight.answer.ids), ord(letter), None, now)
    return got
