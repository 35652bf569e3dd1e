"""Where a request is refused before anything is spent on it: no token, no reservation, no ticket.

What the queue said to the like of it a moment ago is said again. Where that does not tell, while such are refused, the
queue is asked first whether it would take the request, which costs a fifth of a reservation and a ticket.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import structlog
from opentelemetry.metrics import CallbackOptions, Observation

from penstock.chassis import semconv
from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import Overloaded, PenstockError, error_from_failure
from penstock.chassis.telemetry import meter, trace_id_of
from penstock.edge.catalog import Catalog
from penstock.edge.flight.plan import Plan
from penstock.edge.passage import Passage
from penstock.edge.refusals import Ask, Closing, Kind, Refusals
from penstock.edge.request.outline import Arrival, Knock, Outline, outline_of
from penstock.edge.standing import Standing, Standings
from penstock.mesh.v1.admission_pb2 import Credential, Identity
from penstock.mesh.v1.queue_pb2 import Closed, Queued, Shed
from penstock.v1.inference_pb2 import Priority

log = structlog.get_logger()

Know = Callable[[Credential, "Priority.ValueType"], Identity | None]

EDGE, QUEUE = "edge", "queue"  # who refused
TELL_EVERY = 1.0  # s


class Count(NamedTuple):
    """What refusals are counted by."""

    reason: str
    by: str
    priority: int


class Door:
    """Says to those that auth let in of late what the queue said to their like a moment ago.

    Whoever is not known, or goes on with an answer that has begun, passes: auth and the queue decide.
    """

    def __init__(self, know: Know, catalog: Catalog, *, default_output_tokens: int) -> None:
        self._know = know
        self._catalog = catalog
        self._default_output_tokens = default_output_tokens
        self._refusals = Refusals()
        self._counts = Counter[Count]()
        self._told_at = 0.0  # s
        # Observed and not added to: an addition costs as much as all else that is done here.
        meter().create_observable_counter(semconv.PENSTOCK_EDGE_REFUSED, [self._observe], unit="{request}")

    def refused(self, by: str) -> int:
        return sum(requests for count, requests in self._counts.items() if count.by == by)

    @property
    def sheds(self) -> list[dict[str, Any]]:
        """What was refused here, as rows like those of the queue's shards, which count what they refused."""
        return [
            {"class": _class_name(count.priority), "reason": count.reason, "by": EDGE, "tickets": requests}
            for count, requests in sorted(self._counts.items())
            if count.by == EDGE
        ]

    def check(
        self,
        asked: Outline,
        credential: Credential,
        traceparent: str,
        *,
        at: float,
        time: float,
        standings: Standings | None = None,
    ) -> Arrival:
        """Raise Overloaded for what the queue would refuse, by the fewest tokens that it can come to.

        Nothing is kept of it but a count: no span, and a line in the log for one of many.
        """
        if not (self._refusals and asked.is_fresh):
            return Arrival(at, time)
        work_out = partial(self._standing, asked, credential)
        standing = standings.find(asked.priority, asked.model, at, work_out) if standings else work_out()
        ask = standing and self._least(asked, standing.context_length, at, time)
        if standing is None or ask is None:
            return Arrival(at, time)
        kind = standing.kind
        self._check(asked, kind, ask, traceparent, standing.key_id)
        if not self._refusals.were_any(kind, at):
            return Arrival(at, time)
        return Arrival(at, time, Knock(kind, ask, standing.weight, standing.key_id, asked, traceparent))

    def check_planned(self, passage: Passage, plan: Plan) -> None:
        """Raise Overloaded for what the queue would refuse, now that its tokens are counted."""
        if self._refusals and _is_fresh(passage):
            arrived = passage.flight.arrived
            ask = Ask(len(plan.prompt_ids), plan.max_output_tokens, arrived, passage.flight.deadline - arrived)
            if passage.asked_for and (ask.prompt, ask.output) == (passage.asked_for.prompt, passage.asked_for.output):
                return  # the queue has had its word, and what others were told since says less
            if identity := self._know(passage.credential, passage.spec.priority):
                kind = Kind(identity.tenant_id, plan.model, identity.priority)
                self._check(outline_of(passage.spec), kind, ask, passage.record.traceparent, identity.key_id)

    def check_again(self, knock: Knock) -> None:
        """Raise Overloaded for what others of the kind were told while this one waited for its turn to ask."""
        self._check(knock.asked, knock.kind, knock.ask, knock.traceparent, knock.key_id)

    def check_knock(self, knock: Knock, shed: Shed, *, sent: float, now: float) -> None:
        """Raise Overloaded where a shard told it of who asked first, at `sent`; nothing is kept of it here either."""
        error = error_from_failure(shed.failure)
        if not isinstance(error, Overloaded):
            return  # whatever it is, it is told to who comes
        self._refusals.closed(knock.kind, knock.ask, _closings(shed.closed), asked_at=sent, told=error, now=now)
        count = Count(error.reason, QUEUE, knock.kind.priority)
        self._note(count, knock.asked, knock.kind, now, traceparent=knock.traceparent, key_id=knock.key_id)
        raise error

    def queued(self, passage: Passage, queued: Queued, now: float) -> None:
        """The queue took a ticket, and may have no room behind it."""
        if (self._refusals or queued.closed) and _is_fresh(passage):
            self._refusals.taken(*_asked(passage))
            self._closed(passage, queued.closed, None, now)

    def shed(self, passage: Passage, shed: Shed, error: PenstockError, now: float) -> None:
        """The queue refused a ticket, or gave it up."""
        if not isinstance(error, Overloaded):
            return
        self._counts[Count(error.reason, QUEUE, passage.flight.identity.priority)] += 1
        passage.record.refused_by(QUEUE)
        if _is_fresh(passage):
            self._closed(passage, shed.closed, error, now)

    def _closed(self, passage: Passage, closed: Iterable[Closed], told: Overloaded | None, now: float) -> None:
        sent = passage.flight.enqueued_at
        self._refusals.closed(*_asked(passage), _closings(closed), asked_at=sent, told=told, now=now)

    def _standing(self, asked: Outline, credential: Credential) -> Standing | None:
        """Return None where this edge cannot tell: of callers that auth has not let in of late, and of other models."""
        model = self._catalog.at_hand(asked.model)
        identity = self._know(credential, asked.priority) if model else None
        if model is None or identity is None:
            return None
        kind = Kind(identity.tenant_id, model.name, identity.priority)
        return Standing(kind, identity.weight, identity.key_id, model.context_length)

    def _least(self, asked: Outline, context_length: int, at: float, time: float) -> Ask | None:
        """Return the least that a request can come to; None where it cannot be run."""
        prompt = asked.least_prompt()
        output = asked.max_output_tokens or min(self._default_output_tokens, context_length - prompt)
        return Ask(prompt, output, at, time) if output >= 1 and prompt + output <= context_length else None

    def _check(self, asked: Outline, kind: Kind, ask: Ask, traceparent: str, key_id: str) -> None:
        if refusal := self._refusals.find(kind, ask):
            count = Count(refusal.reason, EDGE, kind.priority)
            self._note(count, asked, kind, ask.arrived, traceparent=traceparent, key_id=key_id)
            raise refusal.error(ask.arrived)

    def _note(self, count: Count, asked: Outline, kind: Kind, now: float, *, traceparent: str, key_id: str) -> None:
        """Count a refusal at the door, and log one as an example of all since the last."""
        self._counts[count] += 1
        if now - self._told_at < TELL_EVERY:
            return
        self._told_at = now
        log.info(
            "refusing",
            reason=count.reason,
            by=count.by,
            tenant=kind.tenant_id,
            key_id=key_id,
            model=kind.model,
            request_id=asked.request_id,
            trace_id=trace_id_of(traceparent),
            refused=self.refused(EDGE),
        )

    def _observe(self, _: CallbackOptions) -> Iterator[Observation]:
        for count, requests in self._counts.items():
            labels = {semconv.PENSTOCK_REASON: count.reason, semconv.PENSTOCK_REFUSED_BY: count.by}
            yield Observation(requests, {**labels, semconv.PENSTOCK_PRIORITY: _class_name(count.priority)})


def _class_name(priority: int) -> str:
    name = Priority.Name(priority)  # type: ignore[arg-type]  # an int that came from this very enum
    return name.removeprefix("PRIORITY_").lower()


def _is_fresh(passage: Passage) -> bool:
    spec = passage.spec
    return passage.flight.attempt == 1 and not (spec.resume_ids or spec.answer_id)


def _closings(closed: Iterable[Closed]) -> list[Closing]:
    return [
        Closing(
            seconds_of(each.lasts),
            each.prompt_tokens,
            each.max_output_tokens,
            each.by_deadline,
            each.most_prompt_tokens,
        )
        for each in closed
    ]


def _asked(passage: Passage) -> tuple[Kind, Ask]:
    flight = passage.flight
    kind = Kind(flight.identity.tenant_id, flight.plan.model, flight.identity.priority)
    time = flight.deadline - flight.arrived
    return kind, Ask(flight.prompt_tokens, flight.plan.max_output_tokens, flight.arrived, time)
