"""Where a request is refused before anything is spent on it: no token, no reservation, no ticket."""

from collections import Counter
from collections.abc import Callable, Iterator

from opentelemetry.metrics import CallbackOptions, Observation

from penstock.chassis import semconv
from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import Overloaded, PenstockError
from penstock.chassis.telemetry import meter
from penstock.edge.catalog import Catalog
from penstock.edge.flight.plan import Plan
from penstock.edge.passage import Passage
from penstock.edge.refusals import Ask, Kind, Refusals, refusal_of
from penstock.edge.request.spec import RequestSpec
from penstock.edge.text.least import least_tokens
from penstock.mesh.v1.admission_pb2 import Credential, Identity
from penstock.mesh.v1.queue_pb2 import Shed
from penstock.v1.inference_pb2 import Priority

Know = Callable[[Credential, "Priority.ValueType"], Identity | None]

EDGE, QUEUE = "edge", "queue"  # who refused


class Door:
    """Says to those that auth let in of late what the queue said to their like a moment ago.

    Whoever is not known, or goes on with an answer that has begun, passes: auth and the queue decide.
    """

    def __init__(self, know: Know, catalog: Catalog, *, default_output_tokens: int) -> None:
        self._know = know
        self._catalog = catalog
        self._default_output_tokens = default_output_tokens
        self._refusals = Refusals()
        self._counts = Counter[tuple[str, str]]()  # by reason and who refused
        # Observed and not added to: an addition costs as much as all else that is done here.
        meter().create_observable_counter(semconv.PENSTOCK_EDGE_REFUSED, [self._observe], unit="{request}")

    def refused(self, by: str) -> int:
        return sum(count for (_, who), count in self._counts.items() if who == by)

    def check(self, spec: RequestSpec, credential: Credential, arrived: float, time: float) -> None:
        """Raise Overloaded for what the queue would refuse, by the fewest tokens that it can come to."""
        if not self._refusals or spec.resume_ids or spec.answer_id:
            return
        model, prompt = self._catalog.at_hand(spec.model), least_tokens(spec.input)
        if model is None:
            return
        output = spec.max_output_tokens or min(self._default_output_tokens, model.context_length - prompt)
        if output >= 1 and prompt + output <= model.context_length:
            self._check(spec, credential, model.name, Ask(prompt, output, arrived, time))

    def check_planned(self, passage: Passage, plan: Plan) -> None:
        """Raise Overloaded for what the queue would refuse, now that its tokens are counted."""
        if self._refusals and _is_fresh(passage):
            arrived = passage.flight.arrived
            ask = Ask(len(plan.prompt_ids), plan.max_output_tokens, arrived, passage.flight.deadline - arrived)
            self._check(passage.spec, passage.credential, plan.model, ask)

    def queued(self, passage: Passage) -> None:
        """The queue took a ticket."""
        if self._refusals and _is_fresh(passage):
            self._refusals.taken(*_asked(passage))

    def shed(self, passage: Passage, shed: Shed, error: PenstockError, now: float) -> None:
        """The queue refused a ticket, or gave it up."""
        if not isinstance(error, Overloaded):
            return
        self._counts[error.reason, QUEUE] += 1
        if _is_fresh(passage):
            kind, ask = _asked(passage)
            for each in shed.closed:
                like = ask._replace(prompt=each.prompt_tokens, output=each.max_output_tokens)
                lasts = seconds_of(each.lasts)
                refusal = refusal_of(like, lasts=lasts, by_deadline=each.by_deadline, told=error, now=now)
                self._refusals.note(kind, refusal, now)

    def _check(self, spec: RequestSpec, credential: Credential, model: str, ask: Ask) -> None:
        identity = self._know(credential, spec.priority)
        if identity is None:
            return
        if refusal := self._refusals.find(Kind(identity.tenant_id, model, identity.priority), ask):
            self._counts[refusal.reason, EDGE] += 1
            raise refusal.error(ask.arrived)

    def _observe(self, _: CallbackOptions) -> Iterator[Observation]:
        for (reason, by), count in self._counts.items():
            yield Observation(count, {semconv.PENSTOCK_REASON: reason, semconv.PENSTOCK_REFUSED_BY: by})


def _is_fresh(passage: Passage) -> bool:
    spec = passage.spec
    return passage.flight.attempt == 1 and not (spec.resume_ids or spec.answer_id)


def _asked(passage: Passage) -> tuple[Kind, Ask]:
    flight = passage.flight
    kind = Kind(flight.identity.tenant_id, flight.plan.model, flight.identity.priority)
    time = flight.deadline - flight.arrived
    return kind, Ask(flight.prompt_tokens, flight.plan.max_output_tokens, flight.arrived, time)
