"""From flights to the frames other tiers get. Sizes and rights go to auth and queue; ids go to the worker alone."""

import math

from penstock.edge.flight.effects import Settle as SettleEffect
from penstock.edge.links.fingerprint import crash_fingerprint, fingerprint
from penstock.edge.links.prefix import prefix_hashes
from penstock.edge.passage import Passage
from penstock.edge.request.outline import Knock
from penstock.mesh.v1.admission_pb2 import AdmitRequest, Reserve, Settle
from penstock.mesh.v1.queue_pb2 import Enqueue, SubmitRequest, Withdraw
from penstock.mesh.v1.ticket_pb2 import Lease, Ticket
from penstock.mesh.v1.worker_pb2 import Cancel, ExecuteRequest, Start

NANOS = 1_000_000_000


def reserve(passage: Passage) -> AdmitRequest:
    flight = passage.flight
    return AdmitRequest(
        reserve=Reserve(
            request_id=flight.ticket_id,
            credential=passage.credential,
            model=flight.plan.model,
            prompt_tokens=flight.prompt_tokens,
            max_output_tokens=max(0, flight.answer.tokens_left),
            priority=passage.spec.priority,
            traceparent=passage.record.traceparent,
            answer_id=passage.spec.answer_id,
            emitted_tokens=len(flight.plan.resumed_ids),
            fingerprint=fingerprint(passage.credential.bearer, flight.plan),
        )
    )


def vouched(passage: Passage, key_id: str) -> AdmitRequest:
    """The same ask of a request that was let in already."""
    frame = reserve(passage)
    frame.reserve.ClearField("credential")
    frame.reserve.vouch.key_id = key_id
    return frame


def settle(reservation_id: str, spent: SettleEffect) -> AdmitRequest:
    return AdmitRequest(
        settle=Settle(
            reservation_id=reservation_id,
            prompt_tokens=spent.prompt_tokens,
            output_tokens=spent.output_tokens,
            outcome=spent.outcome,
        )
    )


def enqueue(passage: Passage) -> SubmitRequest:
    return SubmitRequest(enqueue=Enqueue(tickets=[_ticket(passage)]))


def knock(ticket_id: str, asked: Knock, now: float) -> SubmitRequest:
    frame = SubmitRequest()
    ticket = frame.knock.ticket
    ticket.ticket_id, ticket.attempt = ticket_id, 1
    ticket.tenant_id, ticket.model, priority = asked.kind
    ticket.priority, ticket.weight = priority, asked.weight  # type: ignore[assignment]  # came from this very enum
    ticket.prompt_tokens, ticket.max_output_tokens = asked.ask.prompt, asked.ask.output
    ticket.deadline_unix_nano, ticket.enqueue_unix_nano = unix_nano(asked.ask.deadline), unix_nano(now)
    return frame


def withdraw(ticket_id: str, now: float) -> SubmitRequest:
    return SubmitRequest(withdraw=Withdraw(ticket_ids=[ticket_id], withdraw_unix_nano=unix_nano(now)))


def _ticket(passage: Passage) -> Ticket:
    flight, plan, identity = passage.flight, passage.flight.plan, passage.flight.identity
    passage.crash_fingerprint = passage.crash_fingerprint or crash_fingerprint(identity.cache_salt, plan)
    return Ticket(
        ticket_id=flight.ticket_id,
        tenant_id=identity.tenant_id,
        priority=identity.priority,
        weight=identity.weight,
        model=plan.model,
        prompt_tokens=flight.prompt_tokens + len(flight.answer.ids),
        max_output_tokens=flight.answer.tokens_left,
        deadline_unix_nano=unix_nano(flight.deadline),
        enqueue_unix_nano=unix_nano(flight.enqueued_at),
        attempt=flight.attempt,
        prefix_hashes=prefix_hashes(plan.prompt_ids, plan.block_size, identity.cache_salt),
        avoid_workers=flight.losses.avoided,
        traceparent=passage.record.traceparent,
        fingerprint=passage.crash_fingerprint,
        may_have_run=bool(passage.spec.answer_id or passage.spec.resume_ids),
    )


def start(passage: Passage, handle: int, lease: Lease) -> ExecuteRequest:
    flight, plan = passage.flight, passage.flight.plan
    return ExecuteRequest(
        start=Start(
            handle=handle,
            lease_id=lease.lease_id,
            ticket_id=flight.ticket_id,
            token_ids=[*plan.prompt_ids, *flight.answer.ids],
            emitted=len(flight.answer.ids),
            max_output_tokens=flight.answer.tokens_left,
            sampling=plan.sampling,
            ignore_eos=plan.ignore_eos,
            cache_salt=flight.identity.cache_salt,
            deadline_unix_nano=unix_nano(flight.deadline),
            traceparent=passage.record.traceparent,
            fingerprint=passage.crash_fingerprint,
        )
    )


def cancel(handle: int) -> ExecuteRequest:
    return ExecuteRequest(cancel=Cancel(handle=handle))


def unix_nano(seconds: float) -> int:
    return 0 if math.isinf(seconds) else round(seconds * NANOS)
