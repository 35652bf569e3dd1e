"""Where a request is refused before anything is spent on it: no token, no reservation, no ticket."""

from collections.abc import Callable

import structlog

from penstock.chassis import semconv
from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import Overloaded, PenstockError
from penstock.chassis.telemetry import meter
from penstock.edge.catalog import Catalog
from penstock.edge.passage import Passage
from penstock.edge.refusals import Ask, Kind, Refusals, refusal_of
from penstock.edge.request.spec import RequestSpec
from penstock.edge.text.least import least_tokens
from penstock.mesh.v1.admission_pb2 import Credential, Identity
from penstock.mesh.v1.queue_pb2 import Shed
from penstock.v1.inference_pb2 import Priority

log = structlog.get_logger()

Know = Callable[[Credential, "Priority.ValueType"], Identity | None]

_refused = meter().create_counter(
    semconv.PENSTOCK_EDGE_REFUSED, unit="{request}", description="For load, by reason and by who decided it."
)


class Door:
    """Says to those that auth let in of late what the queue said to their like a moment ago.

    Whoever is not known, or goes on with an answer that has begun, passes: auth and the queue decide.
    """

    def __init__(self, know: Know, catalog: Catalog, *, default_output_tokens: int) -> None:
        self._know = know
        self._catalog = catalog
        self._default_output_tokens = default_output_tokens
        self._refusals = Refusals()
        self.refused_here = 0
        self.refused_by_queue = 0

    def check(self, spec: RequestSpec, credential: Credential, arrived: float, time: float) -> None:
        """Raise Overloaded for what the queue would refuse."""
        if not self._refusals or spec.resume_ids or spec.answer_id:
            return
        model, prompt = self._catalog.at_hand(spec.model), least_tokens(spec.input)
        if model is None:
            return
        output = spec.max_output_tokens or min(self._default_output_tokens, model.context_length - prompt)
        identity = self._know(credential, spec.priority)
        if identity is None or output < 1 or prompt + output > model.context_length:
            return
        kind = Kind(identity.tenant_id, model.name, identity.priority)
        if refusal := self._refusals.find(kind, Ask(prompt, output, arrived, time)):
            self.refused_here += 1
            _refused.add(1, {semconv.PENSTOCK_REASON: refusal.reason, semconv.PENSTOCK_REFUSED_BY: "edge"})
            raise refusal.error(arrived)

    def queued(self, passage: Passage) -> None:
        """The queue took a ticket."""
        if self._refusals and _is_fresh(passage):
            self._refusals.taken(*_asked(passage))

    def shed(self, passage: Passage, shed: Shed, error: PenstockError, now: float) -> None:
        """The queue refused a ticket, or gave it up."""
        if not isinstance(error, Overloaded):
            return
        self.refused_by_queue += 1
        _refused.add(1, {semconv.PENSTOCK_REASON: error.reason, semconv.PENSTOCK_REFUSED_BY: "queue"})
        if _is_fresh(passage) and (lasts := seconds_of(shed.closed.lasts)):
            kind, ask = _asked(passage)
            closed = refusal_of(ask, lasts=lasts, by_deadline=shed.closed.by_deadline, told=error, now=now)
            self._refusals.note(kind, closed, now)


def _is_fresh(passage: Passage) -> bool:
    return passage.flight.attempt == 1 and not passage.spec.resume_ids


def _asked(passage: Passage) -> tuple[Kind, Ask]:
    flight = passage.flight
    kind = Kind(flight.identity.tenant_id, flight.plan.model, flight.identity.priority)
    time = flight.deadline - flight.arrived
    return kind, Ask(flight.prompt_tokens, flight.plan.max_output_tokens, flight.arrived, time)
