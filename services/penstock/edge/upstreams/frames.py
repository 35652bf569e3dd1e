"""Frames to other tiers. Auth and queue receive sizes and rights; only workers receive token ids."""

from collections.abc import Mapping

from penstock.chassis.durations import nanos_left, nanos_since
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.effects import Settle as SettleEffect
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.upstreams.hashing import answer_fingerprint, block_hashes, poison_fingerprint
from penstock.mesh.forms import form_message
from penstock.mesh.v1.admission_pb2 import AdmitRequest, Identity, Reserve, Settle
from penstock.mesh.v1.queue_pb2 import Enqueue, HeldModel, HeldRequests, SubmitRequest, Withdraw
from penstock.mesh.v1.ticket_pb2 import Lease, Ticket
from penstock.mesh.v1.worker_pb2 import Cancel, ExecuteRequest, Start

API_KEY_PREFIX = "pk_"


def reserve(context: RequestContext) -> AdmitRequest:
    request = context.request
    return AdmitRequest(
        reserve=Reserve(
            request_id=request.ticket_id,
            credential=context.credential,
            model=request.plan.model,
            prompt_tokens=request.charged_prompt_tokens,
            max_output_tokens=max(0, request.output.tokens_left),
            priority=context.spec.priority,
            traceparent=context.telemetry.traceparent,
            answer_id=context.spec.answer_id,
            emitted_tokens=len(request.plan.resumed_ids),
            answer_fingerprint=answer_fingerprint(_lasting_name(context), context.spec.input, request.plan),
        )
    )


def reserve_abandoned(context: RequestContext, plan: GenerationPlan) -> AdmitRequest:
    """Return the reservation of a request that ended while its prompt was tokenized, which is charged all the same."""
    return AdmitRequest(
        reserve=Reserve(
            request_id=context.ticket_id,
            credential=context.credential,
            model=plan.model,
            prompt_tokens=len(plan.prompt_ids),
            priority=context.spec.priority,
            traceparent=context.telemetry.traceparent,
            answer_id=context.spec.answer_id,
            answer_fingerprint=answer_fingerprint(_lasting_name(context), context.spec.input, plan),
        )
    )


def _lasting_name(context: RequestContext) -> str:
    """Return what names the caller over all requests of an answer: API key, delegation, or subject of its tokens."""
    if context.credential.delegation:
        return context.credential.delegation.hex()
    bearer, key_id = context.credential.bearer, context.request.identity.key_id
    return bearer if bearer.startswith(API_KEY_PREFIX) else key_id or bearer


def reserve_admitted(context: RequestContext, identity: Identity, grant: bytes) -> AdmitRequest:
    """Return the deferred reservation of a request that the edge admitted under auth fallback, with its granted class.

    Auth cannot derive the class from the key id of a JWT, and charges by it.
    """
    frame = reserve(context)
    frame.reserve.ClearField("credential")
    frame.reserve.priority = identity.priority
    frame.reserve.fallback_admission.key_id = identity.key_id
    frame.reserve.fallback_admission.grant = grant
    return frame


def settle(reservation_id: str, settlement: SettleEffect, partition: int) -> AdmitRequest:
    return AdmitRequest(
        settle=Settle(
            reservation_id=reservation_id,
            prompt_tokens=settlement.prompt_tokens,
            output_tokens=settlement.output_tokens,
            outcome=settlement.outcome,
            partition=partition,
            cached_tokens=settlement.cached_tokens,
            worker=settlement.worker_id,
        )
    )


def held_requests(requests_by_model: Mapping[str, int]) -> SubmitRequest:
    models = [HeldModel(model=model, requests=requests) for model, requests in requests_by_model.items()]
    return SubmitRequest(held_requests=HeldRequests(models=models))


def enqueue(context: RequestContext, now: float) -> SubmitRequest:
    return SubmitRequest(enqueue=Enqueue(tickets=[_ticket(context, now)]))


def withdraw(ticket_id: str) -> SubmitRequest:
    return SubmitRequest(withdraw=Withdraw(ticket_ids=[ticket_id]))


def _ticket(context: RequestContext, now: float) -> Ticket:
    request, plan, identity = context.request, context.request.plan, context.request.identity
    context.poison_fingerprint = context.poison_fingerprint or poison_fingerprint(identity.cache_salt, plan)
    return Ticket(
        ticket_id=request.ticket_id,
        tenant_id=identity.tenant_id,
        priority=identity.priority,
        weight=identity.weight,
        model=plan.model_key,
        prompt_tokens=request.prompt_tokens + len(request.output.token_ids),
        max_output_tokens=request.output.tokens_left,
        time_left_nanos=nanos_left(request.deadline, now),
        age_nanos=nanos_since(request.enqueued_at, now),
        readmitted=request.was_queued,
        attempt=request.attempt,
        prefix_hashes=block_hashes(plan.prompt_ids, plan.block_size, identity.cache_salt),
        avoid_workers=request.failed_attempts.avoided_workers,
        traceparent=context.telemetry.traceparent,
        fingerprint=context.poison_fingerprint,
        may_have_run=context.spec.is_continued,
        away_nanos=context.away_nanos,
    )


def start(context: RequestContext, handle: int, lease: Lease, now: float) -> ExecuteRequest:
    request, plan = context.request, context.request.plan
    return ExecuteRequest(
        start=Start(
            handle=handle,
            lease_id=lease.lease_id,
            ticket_id=request.ticket_id,
            token_ids=[*plan.prompt_ids, *request.output.token_ids],
            emitted=len(request.output.token_ids),
            max_output_tokens=request.output.tokens_left,
            sampling=plan.sampling,
            ignore_eos=plan.ignore_eos,
            cache_salt=request.identity.cache_salt,
            time_left_nanos=nanos_left(request.deadline, now),
            traceparent=context.telemetry.traceparent,
            fingerprint=context.poison_fingerprint,
            model=plan.model_key,
            form=form_message(plan.form) if plan.form else None,
            embeds=plan.embedding_size > 0,
            request_id=context.request_id,
        )
    )


def cancel(handle: int) -> ExecuteRequest:
    return ExecuteRequest(cancel=Cancel(handle=handle))
