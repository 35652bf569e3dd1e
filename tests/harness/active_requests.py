"""Active requests at each stage of their life, and events for them."""

from dataclasses import replace
from datetime import timedelta

from penstock.edge.lifecycle.active_request import ActiveRequest
from penstock.edge.lifecycle.effects import Accept, AcknowledgeCancel, Emit, Enqueue, Fail, Finish, Reserve, StartRun
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.lifecycle.record import LifecycleLimits
from penstock.edge.text.detokenizer import TextDelta
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.worker_pb2 import RunTimes
from penstock.v1.inference_pb2 import Sampling

LIMITS = LifecycleLimits(max_attempts=3, upstream_timeout=10.0, cancel_ack_timeout=5.0)
DEADLINE = 100.0
END_EFFECTS = (Finish, Fail, AcknowledgeCancel)
RUN_TIMES = RunTimes(wait=timedelta(seconds=1), prefill=timedelta(seconds=2), decode=timedelta(seconds=3))
EOS_ID = 7


class LetterDetokenizer:
    """Converts each token to a letter, ends at the letter `stop`, and holds back the last letter."""

    def __init__(self, stop=""):
        self.stop = stop
        self.held = ""

    def push(self, token_id):
        text, self.held = self.held, chr(token_id)
        return TextDelta(text, self.stop) if self.held == self.stop else TextDelta(text)

    def flush(self):
        text, self.held = self.held, ""
        return text


DEFAULT_PLAN = GenerationPlan(
    model="tiny",
    prompt_ids=[1, 2, 3],
    max_output_tokens=6,
    sampling=Sampling(seed=1),
    detokenizer=LetterDetokenizer(),
    eos_ids=frozenset({EOS_ID}),
)


def generation_plan(**changes):
    return replace(DEFAULT_PLAN, **{"detokenizer": LetterDetokenizer(), **changes})


def new_active_request(**limits):
    return ActiveRequest("t1", arrived_at=0.0, deadline=DEADLINE, limits=replace(LIMITS, **limits))


def queued_request(*, spills=False, **changes):
    request = new_active_request(spills=spills)
    assert request.on_tokenized(generation_plan(**changes), 1.0) == [Reserve()]
    assert request.on_admitted(Identity(tenant_id="acme"), "r1", 2.0) == [Enqueue()]
    return request


def lease(attempt=1, worker="w1"):
    return Lease(
        lease_id=f"l{attempt}",
        worker_id=worker,
        attempt=attempt,
        ttl=timedelta(seconds=4),
        queue_wait=timedelta(seconds=5),
        placement_time=timedelta(seconds=1),
    )


def running_request(**changes):
    request = queued_request(**changes)
    assert request.on_queued() == [Accept()]
    assert request.on_leased(lease(), 10.0) == [StartRun(lease())]
    assert request.on_run_started() == []
    return request


def send_tokens(request, text, now=12.0):
    """Send `text` as tokens of the worker, one per letter, and return the effects."""
    got = []
    for letter in text:
        got += token_effects(request, len(request.output.token_ids), ord(letter), now)
    return got


def token_effects(request, index, token_id, now):
    """Send a token and return its effects, also if there is one bare effect."""
    effects = request.on_token(index, token_id, None, now)
    return [effects] if isinstance(effects, Emit) else effects
