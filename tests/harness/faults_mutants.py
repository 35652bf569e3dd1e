"""Mutants: bugs that a tier could have, each patched into its real code, which the worlds must find."""

import dataclasses
import time
from unittest.mock import patch

from batch_mutants import BATCH_MUTANTS
from home_mutants import HOME_MUTANTS
from mutant_registry import (
    ADMIT,
    DISPATCH,
    EXECUTE,
    MUTANTS,
    SESSION,
    SUBMIT,
    cancels_early,
    cancels_midway,
    clocks_that_step,
    edge_freeze_during_auth_restart,
    mutant,
    poison_resumed_by_another_edge,
    poison_sent_twice,
    poison_with_edge_kills,
    poison_with_scheduler_unreachable,
    poison_without_schedulers,
    rollout_with_lost_edges,
    rollout_with_lost_workers,
    unchanged,
)
from partition_mutants import PARTITION_MUTANTS
from penstock.auth.edge_sessions import EdgeSessions
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.chassis.clocks import StallFreeClock, WallMonotonicClock
from penstock.chassis.server import write_timeout
from penstock.client.progress import Progress
from penstock.client.stream import EdgeStream
from penstock.edge.lifecycle.active_request import ActiveRequest
from penstock.edge.lifecycle.output import OutputStream
from penstock.edge.lifecycle.record import RequestState
from penstock.edge.models import planner
from penstock.edge.runner import RequestRunner
from penstock.edge.upstreams import frames as edge_frames
from penstock.edge.upstreams.queue import QueueClient
from penstock.edge.upstreams.worker import WorkerConnection
from penstock.faults.grpc.network import TO_CLIENT, Failpoint
from penstock.faults.mutations import with_poison, with_slow_reader
from penstock.faults.plan import FaultKind
from penstock.faults.world.host_clock import EPOCH_UNIX_S
from penstock.queue.poison import PoisonRequests
from penstock.queue.tickets.book import TicketBook
from penstock.queue.tickets.recent_leases import RecentLeases
from penstock.scheduler.credit.credit_book import CreditBook
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.poison import PoisonReports
from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.quarantine.broadcast import PoisonBroadcast
from penstock.worker.quarantine.quarantine import SuspectIsolation
from penstock.worker.runs import errors
from penstock.worker.runs.table import RunTable
from penstock.worker.scheduler_session.client import SchedulerClient
from region_mutants import REGION_MUTANTS
from response_mutants import RESPONSE_MUTANTS

__all__ = ["BATCH_MUTANTS", "HOME_MUTANTS", "MUTANTS", "PARTITION_MUTANTS", "REGION_MUTANTS", "RESPONSE_MUTANTS"]

# Clocks.


@mutant(WallMonotonicClock, "now", mutate_plan=clocks_that_step)
def a_process_keeps_the_time_of_its_host(*_):
    return time.time()


@mutant(edge_frames, "nanos_left", mutate_plan=clocks_that_step)
def the_time_left_is_counted_from_the_true_time(nanos_left, deadline, now):
    return nanos_left(deadline, EPOCH_UNIX_S)


# Edge.


@mutant(edge_frames, "start", fault=(FaultKind.KILL, "worker", Failpoint(EXECUTE, TO_CLIENT, "step")))
def a_resumed_run_forgets_the_seed(start, context, *rest):
    frame = start(context, *rest)
    if frame.start.emitted:
        frame.start.sampling.seed = 0
    return frame


@mutant(edge_frames, "start", fault=(FaultKind.KILL, "worker", Failpoint(EXECUTE, TO_CLIENT, "step")))
def a_resumed_run_forgets_its_position(start, context, *rest):
    frame = start(context, *rest)
    frame.start.emitted = 0
    return frame


@mutant(edge_frames, "start", fault=(FaultKind.KILL, "worker", Failpoint(EXECUTE, TO_CLIENT, "step")))
def a_resumed_run_may_be_as_long_as_the_first(start, context, *rest):
    frame = start(context, *rest)
    frame.start.max_output_tokens = context.request.plan.max_output_tokens
    return frame


@mutant(edge_frames, "enqueue", fault=(FaultKind.KILL, "worker", Failpoint(EXECUTE, TO_CLIENT, "step")))
def a_lost_run_is_enqueued_at_the_tail(enqueue, context, now):
    if context.request.attempt > 1:
        context.request.enqueued_at += 1.0
    return enqueue(context, now)


@mutant(edge_frames, "_ticket", mutate_plan=poison_resumed_by_another_edge)
def a_resumed_ticket_hides_that_it_may_have_run(ticket, context, now):
    found = ticket(context, now)
    found.may_have_run = False
    return found


@mutant(OutputStream, "flush", cancel_mode=unchanged)
def held_back_text_is_lost(rest, self):
    return []


@mutant(QueueClient, "_on_down", fault=(FaultKind.KILL, "queue", Failpoint(SUBMIT, TO_CLIENT, "queued")))
def tickets_of_a_lost_shard_are_forgotten(on_down, self, address):
    return None


@mutant(WorkerConnection, "cancel", cancel_mode=cancels_midway)
def a_cancel_never_reaches_the_worker(cancel, self, handle):
    return None


@mutant(ActiveRequest, "on_worker_lost", fault=(FaultKind.KILL, "worker", Failpoint(EXECUTE, TO_CLIENT, "step")))
def a_lost_run_is_never_retried(worker_lost, self, now, *, died):
    return []


@mutant(ActiveRequest, "on_leased", mutate_plan=unchanged)
def a_lease_that_arrives_before_the_answer_of_auth_is_lost(on_leased, self, lease, now):
    return [] if self.state is RequestState.RESERVING else on_leased(self, lease, now)


@mutant(planner, "plan_generation", fault=(FaultKind.KILL, "edge", Failpoint(EXECUTE, TO_CLIENT, "step")))
def a_resumed_answer_forgets_its_text(plan_generation, spec, model, **given):
    plan = plan_generation(spec, model, **given)
    detokenizer = model.codec.new_detokenizer(spec.input, plan.prompt_ids, spec.stop)
    return dataclasses.replace(plan, detokenizer=detokenizer)


@mutant(planner.RequestPlanner, "plan", mutate_plan=rollout_with_lost_edges)
async def a_resumed_answer_continues_with_any_version(plan, self, spec, size_bytes):
    return await plan(self, dataclasses.replace(spec, model_version=""), size_bytes)


@mutant(Progress, "next_request", mutate_plan=rollout_with_lost_edges)
def the_client_omits_the_version_when_it_resumes(next_request, self):
    request = next_request(self)
    request.resume.model_version = ""
    return request


@mutant(ActiveRequest, "on_model_replaced", mutate_plan=rollout_with_lost_workers)
def an_answer_with_output_moves_to_another_version(on_model_replaced, self):
    return self._plan_again() if self.state is RequestState.QUEUED else []


@mutant(RequestRunner, "emit", mutate_plan=with_slow_reader)
def unread_output_of_a_slow_client_is_unbounded(emit, self, context, delta):
    context.sink.send_delta(delta)


@mutant(write_timeout._WriteWatchdog, "_check", mutate_plan=with_slow_reader)
def a_stalled_client_never_times_out(look, self):
    return None


@mutant(StallFreeClock, "at", mutate_plan=edge_freeze_during_auth_restart)
def an_edge_mistakes_its_own_stall_for_an_auth_outage(at, self, now):
    return now


# Client.


@mutant(Progress, "next_request", fault=(FaultKind.KILL, "edge", Failpoint(EXECUTE, TO_CLIENT, "step")))
def the_client_omits_the_seed_when_it_resumes(request, self):
    found = request(self)
    if self.token_ids:
        found.sampling.ClearField("seed")
    return found


@mutant(EdgeStream, "_on_down", fault=(FaultKind.RESET, "edge", Failpoint(SESSION, TO_CLIENT, "step")))
def a_lost_session_leaves_its_requests_waiting(on_down, self, reason):
    self._stop_accepting()


# Auth.


@mutant(ReservationTable, "find", fault=(FaultKind.RESET, "auth", Failpoint(ADMIT, TO_CLIENT, "admitted")))
def a_repeated_reservation_is_reserved_again(find, self, tenant_id, request_id):
    return None


@mutant(EdgeSessions, "pop_expired", fault=(FaultKind.KILL, "edge", Failpoint(EXECUTE, TO_CLIENT, "step")))
def an_edge_that_stays_away_keeps_its_reservations(expired, self, now):
    return []


# Queue.


@mutant(
    TicketBook,
    "on_scheduler_disconnected",
    fault=(FaultKind.KILL, "scheduler", Failpoint(DISPATCH, TO_CLIENT, "offer")),
)
def offers_to_a_dead_scheduler_are_lost(scheduler_lost, self, scheduler, now):
    self.schedulers[scheduler].offered.clear()
    return scheduler_lost(self, scheduler, now)


@mutant(RecentLeases, "with_fingerprints", mutate_plan=poison_sent_twice)
def leased_suspects_may_start_on_another_worker(*_):
    return {}


# Scheduler.


@mutant(CreditBook, "on_credit_voided")
def credit_is_not_returned_with_a_decline(voided, self, queue):
    return None


@mutant(Dispatcher, "_remove_worker", fault=(FaultKind.KILL, "worker", Failpoint(EXECUTE, TO_CLIENT, "step")))
def leases_of_a_lost_worker_are_kept(forget, self, worker):
    self.fleet.remove(worker)


# Worker.


@mutant(SchedulerClient, "send_released", cancel_mode=cancels_early)
def the_end_of_a_cancelled_run_is_not_reported(send_released, self, released, steps):
    if any(each.output_tokens for each in released.progress):
        send_released(self, released, steps)


@mutant(RunTable, "on_engine_lost")
def runs_of_a_dead_engine_never_end(engine_lost, self, error, *rest, **given):
    self.not_ready_error = error
    return []


@mutant(RunTable, "on_engine_lost", mutate_plan=with_poison)
def suspects_are_not_quarantined(engine_lost, self, error, now, *, crashed=False):
    return engine_lost(self, error, now)


@mutant(SuspectIsolation, "clear_isolated", mutate_plan=with_poison)
def cleared_runs_continue_with_the_next_suspect(_, self):
    if self.isolated and self.isolated.tokens > self._tokens_before:
        self.isolated = None


@mutant(PoisonReports, "merged", mutate_plan=poison_with_edge_kills)
def suspects_are_not_reported_to_queues(*_):
    return ()


@mutant(PoisonRequests, "is_blocked", mutate_plan=poison_without_schedulers)
def lost_runs_start_before_poison_reports_arrive(_, self, ticket, now):
    return self.rejection(ticket.fingerprint, now) is not None


@mutant(PoisonBroadcast, "send_changes", mutate_plan=poison_with_scheduler_unreachable)
def suspects_are_reported_to_one_scheduler_only(*_):
    pass


@mutant(RunTable, "_leave_orphan", mutate_plan=poison_with_edge_kills)
def isolation_ends_when_the_client_disconnects(_, self, run, now):
    return self._end(run, errors.deadline_passed(), now)


@mutant(Batch, "_release_cancelled", cancel_mode=cancels_early)
def blocks_of_a_cancelled_prefill_are_kept(release_blocks, self):
    prefilling = {each.spec.seq_id for each in self.running if each.remaining > 1}
    release = BlockPool.release
    with patch.object(
        BlockPool, "release", lambda pool, table, seq_id: 0 if seq_id in prefilling else release(pool, table, seq_id)
    ):
        return release_blocks(self)


@mutant(Batch, "_emit", fault=(FaultKind.KILL, "worker", Failpoint(EXECUTE, TO_CLIENT, "step")))
def tokens_of_a_resumed_run_are_numbered_from_zero(emit, self, sampled, *rest):
    emit(self, sampled, *rest)
    result = rest[-1]
    result.indexes = [index - sequence.spec.emitted for index, sequence in zip(result.indexes, sampled, strict=True)]
