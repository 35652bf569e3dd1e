"""The admission filter: an edge rejects a request if the queue has just rejected a similar one.

A rejection here costs no token count, no reservation and no ticket. docs/decisions/0001-rejection-cache.md compares
the filter with a circuit breaker.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import structlog

from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import Overloaded, PenstockError
from penstock.chassis.observability.trace_context import TRACE_ID
from penstock.edge.admission.rejection_cache import RejectionCache, RejectionWindow, RequestDemand, TrafficClass
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.request.estimate import AdmissionResult, RequestEstimate, estimate_from_spec
from penstock.mesh.class_names import class_name
from penstock.mesh.v1.admission_pb2 import Credential, Identity
from penstock.mesh.v1.queue_pb2 import Queued, Shed
from penstock.mesh.v1.queue_pb2 import RejectionWindow as RejectionWindowMessage
from penstock.v1.inference_pb2 import Priority

CALLER_CLASS_TTL_S = 0.1


class CallerClass(NamedTuple):
    """Traffic class and attributes of one caller for one requested class and model."""

    traffic_class: TrafficClass
    key_id: str
    context_length: int  # tokens


class CallerClassCache:
    """Caller classes of a session's caller, by requested class and model."""

    def __init__(self) -> None:
        self._expires_at = 0.0  # s
        self._classes: dict[tuple[int, str], CallerClass] = {}

    def find(
        self, priority: int, model: str, now: float, compute: Callable[[], CallerClass | None]
    ) -> CallerClass | None:
        """Return the cached caller class, or compute it. None, which is not cached, if it cannot be computed."""
        if now >= self._expires_at:
            self._classes.clear()
            self._expires_at = now + CALLER_CLASS_TTL_S
        found = self._classes.get((priority, model))
        if found is None and (found := compute()):
            self._classes[priority, model] = found
        return found


log = structlog.get_logger()

# Whether another region may take a request of the caller, with this identity, for the model with this key.
CanSpill = Callable[[Credential, Identity, str], bool]
IdentityLookup = Callable[[Credential, "Priority.ValueType"], Identity | None]

EDGE_TIER, QUEUE_TIER = "edge", "queue"  # the tier that rejected
LOG_INTERVAL_S = 1.0


class RejectionLabels(NamedTuple):
    """Labels of counted rejections."""

    reason: str
    tier: str
    priority: int


class AdmissionFilter:
    """Rejects a recently authenticated caller if the queue has just rejected a similar request.

    Requests of unknown callers and resumed answers pass; auth and the queue decide about them.
    """

    def __init__(
        self,
        find_identity: IdentityLookup,
        catalog: ModelCatalog,
        *,
        default_output_tokens: int,
        can_spill: CanSpill | None = None,  # None: no other region is configured
    ) -> None:
        self._can_spill = can_spill
        self._find_identity = find_identity
        self._catalog = catalog
        self._default_output_tokens = default_output_tokens
        self._cache = RejectionCache()
        self._rejections = Counter[RejectionLabels]()
        self._logged_at = 0.0  # s

    @property
    def rejections(self) -> Mapping[RejectionLabels, int]:
        """Requests that were rejected for load, by this edge or by the queue."""
        return self._rejections

    def rejected(self, tier: str) -> int:
        return sum(requests for count, requests in self._rejections.items() if count.tier == tier)

    @property
    def sheds(self) -> list[dict[str, Any]]:
        """Rejections of this edge, in rows like those of the queue's shards for their rejections."""
        return [
            {"class": class_name(count.priority), "reason": count.reason, "by": EDGE_TIER, "tickets": requests}
            for count, requests in sorted(self._rejections.items())
            if count.tier == EDGE_TIER
        ]

    def admit(
        self,
        estimate: RequestEstimate,
        credential: Credential,
        traceparent: str,
        *,
        arrived_at: float,
        time_limit: float,
        caller_classes: CallerClassCache | None = None,
    ) -> AdmissionResult:
        """Raise Overloaded if the queue would reject even the fewest tokens that the request can need.

        A rejection is counted and sampled in the log. It has no span.
        """
        admission = AdmissionResult(arrived_at, time_limit)
        if not (self._cache and estimate.is_new):
            return admission
        compute = partial(self._caller_class, estimate, credential)
        caller = (
            caller_classes.find(estimate.priority, estimate.model, arrived_at, compute) if caller_classes else compute()
        )
        demand = caller and self._min_demand(estimate, caller.context_length, arrived_at, time_limit)
        if caller and demand:
            self._check_cached(
                estimate,
                caller.traffic_class,
                demand,
                credential=credential,
                traceparent=traceparent,
                key_id=caller.key_id,
            )
        return admission

    def check_planned(self, passage: RequestContext, plan: GenerationPlan) -> None:
        """Raise Overloaded if the queue would reject the request, once its tokens are counted."""
        if self._cache and _is_new(passage):
            arrived = passage.request.arrived_at
            demand = RequestDemand(
                len(plan.prompt_ids), plan.max_output_tokens, arrived, passage.request.deadline - arrived
            )
            if identity := self._find_identity(passage.credential, passage.spec.priority):
                traffic_class = TrafficClass(identity.tenant_id, plan.model_key, identity.priority)
                self._check_cached(
                    estimate_from_spec(passage.spec),
                    traffic_class,
                    demand,
                    credential=passage.credential,
                    traceparent=passage.telemetry.traceparent,
                    key_id=identity.key_id,
                )

    def on_queued(self, passage: RequestContext, queued: Queued, now: float) -> None:
        """The queue admitted a ticket, and may reject further ones."""
        if (self._cache or queued.rejection_windows) and _is_new(passage):
            self._cache.on_admitted(*_demand_of(passage))
            self._cache_windows(passage, queued.rejection_windows, None, now)

    def on_queue_rejected(self, passage: RequestContext, shed: Shed, error: PenstockError, now: float) -> None:
        """The queue rejected or evicted a ticket."""
        if not isinstance(error, Overloaded):
            return
        self._rejections[RejectionLabels(error.reason, QUEUE_TIER, passage.request.identity.priority)] += 1
        passage.telemetry.set_rejected_by(QUEUE_TIER)
        if _is_new(passage):
            self._cache_windows(passage, shed.rejection_windows, error, now)

    def _cache_windows(
        self,
        passage: RequestContext,
        windows: Iterable[RejectionWindowMessage],
        overload: Overloaded | None,
        now: float,
    ) -> None:
        sent = passage.request.enqueued_at
        self._cache.add_windows(
            *_demand_of(passage), _rejection_windows(windows), sent_at=sent, overload=overload, now=now
        )

    def _caller_class(self, estimate: RequestEstimate, credential: Credential) -> CallerClass | None:
        """Return None for a caller that is not cached or a model that is not loaded."""
        model = self._catalog.get_cached(estimate.model)
        identity = self._find_identity(credential, estimate.priority) if model else None
        if model is None or identity is None:
            return None
        traffic_class = TrafficClass(identity.tenant_id, model.key, identity.priority)
        return CallerClass(traffic_class, identity.key_id, model.context_length)

    def _min_demand(
        self, estimate: RequestEstimate, context_length: int, arrived_at: float, time_limit: float
    ) -> RequestDemand | None:
        """Return the smallest possible demand of a request. None if it cannot run."""
        prompt = estimate.min_prompt_tokens()
        output = estimate.max_output_tokens or min(self._default_output_tokens, context_length - prompt)
        return (
            RequestDemand(prompt, output, arrived_at, time_limit)
            if output >= 1 and prompt + output <= context_length
            else None
        )

    def _check_cached(
        self,
        estimate: RequestEstimate,
        traffic_class: TrafficClass,
        demand: RequestDemand,
        *,
        credential: Credential,
        traceparent: str,
        key_id: str,
    ) -> None:
        refusal = self._cache.find(traffic_class, demand)
        if refusal and not self._may_leave(credential, traffic_class):
            labels = RejectionLabels(refusal.reason, EDGE_TIER, traffic_class.priority)
            self._record_rejection(
                labels, estimate, traffic_class, demand.arrived_at, traceparent=traceparent, key_id=key_id
            )
            raise refusal.to_error(demand.arrived_at)

    def _may_leave(self, credential: Credential, traffic_class: TrafficClass) -> bool:
        """Return whether another region may take a request that the queue would reject. It passes to the queue then."""
        if self._can_spill is None:
            return False
        identity = self._find_identity(credential, traffic_class.priority)  # type: ignore[arg-type]  # of the enum
        return identity is not None and self._can_spill(credential, identity, traffic_class.model)

    def _record_rejection(
        self,
        labels: RejectionLabels,
        estimate: RequestEstimate,
        traffic_class: TrafficClass,
        now: float,
        *,
        traceparent: str,
        key_id: str,
    ) -> None:
        """Count a rejection, and log one of all rejections per `LOG_INTERVAL_S`."""
        self._rejections[labels] += 1
        if now - self._logged_at < LOG_INTERVAL_S:
            return
        self._logged_at = now
        log.info(
            "requests_rejected",
            reason=labels.reason,
            by=labels.tier,
            tenant=traffic_class.tenant_id,
            key_id=key_id,
            model=traffic_class.model,
            request_id=estimate.request_id,
            trace_id=traceparent[TRACE_ID],
            refused=self.rejected(EDGE_TIER),
        )


def _is_new(passage: RequestContext) -> bool:
    return passage.request.attempt == 1 and not passage.spec.is_continued and not passage.away_nanos


def _rejection_windows(windows: Iterable[RejectionWindowMessage]) -> list[RejectionWindow]:
    return [
        RejectionWindow(
            seconds_of(each.duration),
            each.min_prompt_tokens,
            each.min_output_tokens,
            each.is_deadline_bound,
            each.max_prompt_tokens,
        )
        for each in windows
    ]


def _demand_of(passage: RequestContext) -> tuple[TrafficClass, RequestDemand]:
    flight = passage.request
    traffic_class = TrafficClass(flight.identity.tenant_id, flight.plan.model_key, flight.identity.priority)
    time = flight.deadline - flight.arrived_at
    return traffic_class, RequestDemand(flight.prompt_tokens, flight.plan.max_output_tokens, flight.arrived_at, time)
