"""From flights to the frames other tiers get. Sizes and rights go to auth and queue; ids go to the worker alone."""

import math

from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.effects import Settle as SettleEffect
from penstock.edge.request.estimate import AdmissionProbe
from penstock.edge.upstreams.hashing import answer_fingerprint, block_hashes, poison_fingerprint
from penstock.mesh.v1.admission_pb2 import AdmitRequest, Reserve, Settle
from penstock.mesh.v1.queue_pb2 import Enqueue, SubmitRequest, Withdraw
from penstock.mesh.v1.ticket_pb2 import Lease, Ticket
from penstock.mesh.v1.worker_pb2 import Cancel, ExecuteRequest, Start

NANOS_PER_S = 1_000_000_000


def reserve(passage: RequestContext) -> AdmitRequest:
    flight = passage.request
    return AdmitRequest(
        reserve=Reserve(
            request_id=flight.ticket_id,
            credential=passage.credential,
            model=flight.plan.model,
            prompt_tokens=flight.prompt_tokens,
            max_output_tokens=max(0, flight.output.tokens_left),
            priority=passage.spec.priority,
            traceparent=passage.telemetry.traceparent,
            answer_id=passage.spec.answer_id,
            emitted_tokens=len(flight.plan.resumed_ids),
            answer_fingerprint=answer_fingerprint(passage.credential.bearer, flight.plan),
        )
    )


def reserve_admitted(passage: RequestContext, key_id: str) -> AdmitRequest:
    """The same ask of a request that was let in already."""
    frame = reserve(passage)
    frame.reserve.ClearField("credential")
    frame.reserve.fallback_admission.key_id = key_id
    return frame


def settle(reservation_id: str, settlement: SettleEffect) -> AdmitRequest:
    return AdmitRequest(
        settle=Settle(
            reservation_id=reservation_id,
            prompt_tokens=settlement.prompt_tokens,
            output_tokens=settlement.output_tokens,
            outcome=settlement.outcome,
        )
    )


def enqueue(passage: RequestContext) -> SubmitRequest:
    return SubmitRequest(enqueue=Enqueue(tickets=[_ticket(passage)]))


def probe(ticket_id: str, admission_probe: AdmissionProbe, now: float) -> SubmitRequest:
    frame = SubmitRequest()
    ticket = frame.probe.ticket
    ticket.ticket_id, ticket.attempt = ticket_id, 1
    ticket.tenant_id, ticket.model, priority = admission_probe.traffic_class
    ticket.priority, ticket.weight = priority, admission_probe.weight  # type: ignore[assignment]  # came from this very enum
    ticket.prompt_tokens, ticket.max_output_tokens = (
        admission_probe.demand.prompt_tokens,
        admission_probe.demand.max_output_tokens,
    )
    ticket.deadline_unix_nano, ticket.enqueue_unix_nano = unix_nano(admission_probe.demand.deadline), unix_nano(now)
    return frame


def withdraw(ticket_id: str, now: float) -> SubmitRequest:
    return SubmitRequest(withdraw=Withdraw(ticket_ids=[ticket_id], withdraw_unix_nano=unix_nano(now)))


def _ticket(passage: RequestContext) -> Ticket:
    flight, plan, identity = passage.request, passage.request.plan, passage.request.identity
    passage.poison_fingerprint = passage.poison_fingerprint or poison_fingerprint(identity.cache_salt, plan)
    return Ticket(
        ticket_id=flight.ticket_id,
        tenant_id=identity.tenant_id,
        priority=identity.priority,
        weight=identity.weight,
        model=plan.model,
        prompt_tokens=flight.prompt_tokens + len(flight.output.token_ids),
        max_output_tokens=flight.output.tokens_left,
        deadline_unix_nano=unix_nano(flight.deadline),
        enqueue_unix_nano=unix_nano(flight.enqueued_at),
        attempt=flight.attempt,
        prefix_hashes=block_hashes(plan.prompt_ids, plan.block_size, identity.cache_salt),
        avoid_workers=flight.failed_attempts.avoided_workers,
        traceparent=passage.telemetry.traceparent,
        fingerprint=passage.poison_fingerprint,
        may_have_run=bool(passage.spec.answer_id or passage.spec.resume_ids),
    )


def start(passage: RequestContext, handle: int, lease: Lease) -> ExecuteRequest:
    flight, plan = passage.request, passage.request.plan
    return ExecuteRequest(
        start=Start(
            handle=handle,
            lease_id=lease.lease_id,
            ticket_id=flight.ticket_id,
            token_ids=[*plan.prompt_ids, *flight.output.token_ids],
            emitted=len(flight.output.token_ids),
            max_output_tokens=flight.output.tokens_left,
            sampling=plan.sampling,
            ignore_eos=plan.ignore_eos,
            cache_salt=flight.identity.cache_salt,
            deadline_unix_nano=unix_nano(flight.deadline),
            traceparent=passage.telemetry.traceparent,
            fingerprint=passage.poison_fingerprint,
        )
    )


def cancel(handle: int) -> ExecuteRequest:
    return ExecuteRequest(cancel=Cancel(handle=handle))


def unix_nano(seconds: float) -> int:
    return 0 if math.isinf(seconds) else round(seconds * NANOS_PER_S)
