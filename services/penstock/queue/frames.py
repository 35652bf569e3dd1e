"""Effects of the book as frames, and what schedulers report as the book keeps it."""

from collections.abc import Iterable
from datetime import timedelta

from penstock.chassis.durations import seconds_of
from penstock.mesh.v1 import queue_pb2 as pb
from penstock.queue import effects as out
from penstock.queue.charges import Service
from penstock.queue.errors import AtTheDoor, Closed
from penstock.queue.seats import Credit
from penstock.queue.speed import Release, Speed
from penstock.queue.waiting import NANOS, to_frame


def to_edge(effect: out.ToEdge | out.Models) -> pb.SubmitResponse:
    match effect:
        case out.Queued():
            queued = pb.Queued(ticket_id=effect.ticket_id, ahead_hint=effect.ahead)
            if effect.predicted_wait is not None:
                queued.predicted_wait.FromTimedelta(timedelta(seconds=effect.predicted_wait))
            queued.closed.extend(map(_closed, effect.closed()))
            return pb.SubmitResponse(queued=queued)
        case out.Leased():
            leased = pb.Leased(lease=effect.lease)
            leased.lease.queue_wait.FromTimedelta(timedelta(seconds=effect.waited))
            return pb.SubmitResponse(leased=leased)
        case out.Shed():
            return pb.SubmitResponse(shed=_shed(effect))
        case out.Withdrawn():
            return pb.SubmitResponse(withdrawn=pb.Withdrawn(ticket_ids=effect.ticket_ids))
        case out.Welcome():
            return pb.SubmitResponse(welcome=pb.Welcome(ticket_id=effect.ticket_id))
        case out.Models():
            return pb.SubmitResponse(catalog=pb.Catalog(entries=effect.entries))


def _shed(effect: out.Shed) -> pb.Shed:
    shed = pb.Shed(ticket_id=effect.ticket_id, failure=effect.error.failure())
    if isinstance(effect.error, AtTheDoor):
        shed.closed.extend(map(_closed, effect.error.closed()))
    return shed


def _closed(found: Closed) -> pb.Closed:
    closed = pb.Closed(by_deadline=found.by_deadline, prompt_tokens=found.prompt, max_output_tokens=found.output)
    closed.most_prompt_tokens = found.most
    closed.lasts.FromTimedelta(timedelta(seconds=found.lasts))
    return closed


def to_scheduler(effect: out.ToScheduler) -> pb.DispatchResponse:
    match effect:
        case out.Offer():
            offer = pb.Offer(ticket=to_frame(effect.ticket), uses_urgent_credit=effect.uses_urgent_credit)
            return pb.DispatchResponse(offer=offer)
        case out.Recalled():
            return pb.DispatchResponse(recalled=pb.Recalled(ticket_ids=effect.ticket_ids))
        case out.Returned():
            return pb.DispatchResponse(returned=pb.Returned(model=effect.model, tickets=effect.tickets))
        case out.Head():
            return pb.DispatchResponse(head=head_message(effect))


def head_message(effect: out.Head) -> pb.Head:
    head = pb.Head(model=effect.model, waiting=effect.waiting, waiting_tokens=effect.waiting_tokens)
    if effect.key:
        head.tokens = effect.tokens
        head.priority = effect.key.priority  # type: ignore[assignment]  # an int that came from this very enum
        head.virtual_tokens = effect.key.virtual_tokens
        head.enqueue_unix_nano = round(effect.key.enqueued * NANOS)
        head.lifted_tokens = effect.key.lifted
        head.resumes, head.urgent = effect.resumes, effect.is_urgent
    return head


def credit_of(frame: pb.Credit) -> Credit:
    room = frame.total_tokens or None
    return Credit(frame.tickets, frame.max_tokens, frame.tokens_per_second, room, frame.urgent_tickets)


def speed_of(frame: pb.Pace, now: float) -> Speed:
    return Speed(
        at=now,
        tokens_per_second=frame.tokens_per_second,
        prefill_tokens_per_second=frame.prefill_tokens_per_second,
        prefill_backlog=frame.prefill_backlog_tokens,
        step_time=seconds_of(frame.step_time),
        free_slots=max(0, frame.slots - frame.running),
        slots=frame.slots,
        leases=frame.leases,
        room=frame.room,
        workers=frame.workers,
        pending_prefill=frame.pending_prefill_tokens,
        decode_step=seconds_of(frame.decode_step_time),
        prefill_token=frame.prefill_token_seconds,
        step_tokens=frame.step_tokens,
        held_tokens=frame.held_tokens,
        free_tokens=frame.free_tokens,
        releases=tuple(Release(seconds_of(each.after), each.leases) for each in frame.releases),
    )


def services_of(tickets: Iterable[pb.ServedTicket]) -> list[Service]:
    return [
        Service(
            each.ticket_id,
            each.prompt_tokens,
            each.output_tokens,
            each.ended,
            each.attempt,
            seconds_of(each.first_token_after),
            each.steps,
        )
        for each in tickets
    ]


def steps_of(workers: Iterable[pb.WorkerSteps]) -> dict[str, int]:
    return {each.worker_id: each.steps for each in workers}
