"""Conversion of effects to frames, and of frames to the values that the book keeps."""

from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf

from penstock.chassis.durations import NANOS_PER_S, nanos_since, seconds_of, set_seconds
from penstock.mesh.limits.bounds import COUNT, RATE, TOTAL_TOKENS, VIRTUAL_TOKENS, at_most
from penstock.mesh.v1 import queue_pb2 as pb
from penstock.queue import effects as out
from penstock.queue.accounting import OutputProgress, ServedTicket
from penstock.queue.errors import AdmissionRejected, RejectionWindow
from penstock.queue.prediction.pool_stats import PoolStats, SlotRelease, WorkerCapacity
from penstock.queue.prediction.prefill_backlog import RemotePrompt
from penstock.queue.prediction.ttft_model import RemoteBacklog
from penstock.queue.schedulers import Credit
from penstock.queue.ticket import to_frame

MAX_PREFILL_BACKLOGS = 64  # workers in one report
MAX_BACKLOG_TOKENS = 1 << 24  # tokens of one worker; a larger backlog makes no difference to a prediction
MAX_WORKER_ID_CHARS = 256


def to_edge(effect: out.ToEdge | out.CatalogUpdate) -> pb.SubmitResponse:
    match effect:
        case out.Queued():
            queued = pb.Queued(ticket_id=effect.ticket_id, ahead_hint=at_most(effect.tickets_ahead, COUNT))
            if effect.predicted_wait is not None:
                set_seconds(queued.predicted_wait, effect.predicted_wait)
            queued.rejection_windows.extend(map(_rejection_window_message, effect.rejection_windows()))
            if census := effect.census:
                queued.census.busiest_tenant_id = census.tenant_id
                queued.census.busiest_tickets = at_most(census.tenant_tickets, COUNT)
                queued.census.class_running = at_most(census.class_running, COUNT)
                queued.census.running = at_most(census.running, COUNT)
                queued.census.slots = at_most(census.slots, COUNT)
            return pb.SubmitResponse(queued=queued)
        case out.Leased():
            leased = pb.Leased(lease=effect.lease)
            set_seconds(leased.lease.queue_wait, effect.waited)
            return pb.SubmitResponse(leased=leased)
        case out.Shed():
            return pb.SubmitResponse(shed=_shed_message(effect))
        case out.Withdrawn():
            return pb.SubmitResponse(withdrawn=pb.Withdrawn(ticket_ids=effect.ticket_ids))
        case out.CatalogUpdate():
            return pb.SubmitResponse(catalog=pb.Catalog(entries=effect.entries))


def _shed_message(effect: out.Shed) -> pb.Shed:
    shed = pb.Shed(ticket_id=effect.ticket_id, failure=effect.error.failure())
    if isinstance(effect.error, AdmissionRejected):
        shed.rejection_windows.extend(map(_rejection_window_message, effect.error.rejection_windows()))
    return shed


def _rejection_window_message(window: RejectionWindow) -> pb.RejectionWindow:
    message = pb.RejectionWindow(
        is_deadline_bound=window.is_deadline_bound,
        min_prompt_tokens=at_most(window.min_prompt_tokens, COUNT),
        min_output_tokens=at_most(window.min_output_tokens, COUNT),
    )
    message.max_prompt_tokens = at_most(window.max_prompt_tokens, COUNT)
    set_seconds(message.duration, window.duration)
    return message


def to_scheduler(effect: out.ToScheduler, now: float) -> pb.DispatchResponse:
    match effect:
        case out.Offer():
            offer = pb.Offer(ticket=to_frame(effect.ticket, now), uses_express_credit=effect.uses_express_credit)
            return pb.DispatchResponse(offer=offer)
        case out.OfferWithdrawn():
            return pb.DispatchResponse(offer_withdrawn=pb.OfferWithdrawn(ticket_ids=effect.ticket_ids))
        case out.CreditReturned():
            returned = pb.CreditReturned(model=effect.model, tickets=at_most(effect.tickets, COUNT))
            return pb.DispatchResponse(credit_returned=returned)
        case out.Head():
            return pb.DispatchResponse(head=head_message(effect, now))


def head_message(effect: out.Head, now: float) -> pb.Head:
    waiting_tokens = at_most(effect.waiting_tokens, TOTAL_TOKENS)
    head = pb.Head(model=effect.model, waiting=at_most(effect.waiting, COUNT), waiting_tokens=waiting_tokens)
    if effect.key:
        head.tokens = effect.tokens
        head.priority = effect.key.priority  # type: ignore[assignment]  # the int is a value of this enum
        head.virtual_tokens = min(effect.key.virtual_tokens, VIRTUAL_TOKENS)
        head.age_nanos, head.arrival_number = nanos_since(effect.key.enqueued, now), effect.arrival_number
        head.lifted_tokens = min(effect.key.lifted_tokens, VIRTUAL_TOKENS)
        head.resumes, head.express = effect.is_resumed, effect.is_express
        head.waiting_prompt_tokens = at_most(effect.waiting_prompt_tokens, TOTAL_TOKENS)
        head.class_waiting = at_most(effect.backlog.tickets, COUNT)
        head.tickets_per_virtual_token = min(effect.backlog.tickets_per_virtual_token, RATE)
    return head


def credit_of(frame: pb.Credit) -> Credit:
    total_tokens = frame.total_tokens or None
    return Credit(frame.tickets, frame.max_ticket_tokens, frame.tokens_per_second, total_tokens, frame.express_tickets)


def pool_stats_of(frame: pb.PoolStats, now: float) -> PoolStats:
    return PoolStats(
        received_at=now,
        tokens_per_second=frame.tokens_per_second,
        prefill_tokens_per_second=frame.prefill_tokens_per_second,
        next_worker_backlog=frame.next_worker_backlog_tokens,
        step_time=seconds_of(frame.step_time),
        free_slots=max(0, frame.slots - frame.running),
        slots=frame.slots,
        leases=frame.leases,
        available_leases=frame.available_leases,
        workers=frame.workers,
        pending_prefill_tokens=frame.pending_prefill_tokens,
        decode_step_time=seconds_of(frame.decode_step_time),
        seconds_per_prefill_token=frame.seconds_per_prefill_token,
        max_step_tokens=frame.max_step_tokens,
        leased_tokens=frame.leased_tokens,
        free_tokens=frame.free_tokens,
        prefill_backlogs=_prefill_backlogs_of(frame),
        capacity_by_worker=_capacities_of(frame),
        releases=tuple(SlotRelease(seconds_of(each.after), each.ended_leases) for each in frame.slot_releases),
    )


def remote_prompts_of(frame: pb.PlacedPrompts, queue: str) -> Iterator[RemotePrompt]:
    """Yield the prompts of shards other than `queue`."""
    for each in frame.prompts:
        if each.queue_id != queue and each.worker_id:
            due_in = each.first_token_nanos / NANOS_PER_S if each.first_token_nanos else inf
            yield RemotePrompt(
                each.worker_id, each.prompt_tokens, each.priority, each.express, due_in, each.usable_share
            )


def remote_backlog_of(frame: pb.VirtualTime) -> RemoteBacklog:
    rate = frame.tickets_per_virtual_token
    return RemoteBacklog(
        frame.waiting, frame.waiting_prompt_tokens, frame.waiting_tokens, rate if 0 <= rate < inf else 0.0
    )


def _prefill_backlogs_of(frame: pb.PoolStats) -> dict[str, int]:
    """Keep what the contract allows, so that no scheduler makes the shard track more: the rest is ignored."""
    return {
        each.worker_id: min(each.tokens, MAX_BACKLOG_TOKENS)
        for each in islice(frame.prefill_backlogs, MAX_PREFILL_BACKLOGS)
        if 0 < len(each.worker_id) <= MAX_WORKER_ID_CHARS and each.tokens
    }


def _capacities_of(frame: pb.PoolStats) -> dict[str, WorkerCapacity]:
    return {
        each.worker_id: WorkerCapacity(each.available_leases, each.free_tokens or inf)
        for each in islice(frame.prefill_backlogs, MAX_PREFILL_BACKLOGS)
    }


def served_tickets_of(tickets: Iterable[pb.ServedTicket]) -> list[ServedTicket]:
    return [
        ServedTicket(
            each.ticket_id,
            each.prompt_tokens,
            each.output_tokens,
            each.ended,
            each.attempt,
            seconds_of(each.first_token_after),
            each.worker_steps,
            each.number,
        )
        for each in tickets
    ]


def output_progress_of(progress: Iterable[pb.OutputProgress]) -> list[OutputProgress]:
    return [OutputProgress(each.ticket_numbers, each.output_tokens, each.worker_steps) for each in progress]


def worker_steps_of(workers: Iterable[pb.WorkerSteps]) -> dict[str, int]:
    return {each.worker_id: each.steps for each in workers}
