"""Bugs that a tier could have, each planted into its real code, for the worlds of `penstock faults` to find."""

import dataclasses
from unittest.mock import patch

from faults_planting import (
    ADMIT,
    DISPATCH,
    EXECUTE,
    MUTANTS,
    SESSION,
    SUBMIT,
    edges_die_of_poison,
    edges_stand_still_while_auth_starts_again,
    hurries_off,
    leaves_midway,
    mutant,
    nobody_hears_of_poison,
    poison_comes_twice,
    poison_goes_on_by_an_edge_that_knows_of_no_loss,
    poison_goes_on_while_its_scheduler_hears_nobody,
    stays,
)
from penstock.auth.accounts import ReservationTable
from penstock.auth.edges import EdgeSessions
from penstock.chassis import writing
from penstock.chassis.own_time import StallFreeClock
from penstock.client.progress import Progress
from penstock.client.stream import EdgeStream
from penstock.edge import gateway
from penstock.edge.flight.answer import OutputStream
from penstock.edge.flight.flight import ActiveRequest
from penstock.edge.links import frames as edge_frames
from penstock.edge.links.queues import QueueClient
from penstock.edge.links.worker import WorkerConnection
from penstock.edge.tower import RequestRunner
from penstock.faults.grpc.network import TO_CLIENT, Point
from penstock.faults.mutations import with_poison, with_slow_reader
from penstock.faults.plan import Act
from penstock.queue.blames import PoisonRequests
from penstock.queue.book import TicketBook
from penstock.queue.placed import RecentLeases
from penstock.scheduler.blames import PoisonReports
from penstock.scheduler.credit import CreditBook
from penstock.scheduler.dispatcher import Dispatcher
from penstock.worker import refusals
from penstock.worker.attachment import SchedulerClient
from penstock.worker.engine.batch import Batch
from penstock.worker.engine.blocks import BlockPool
from penstock.worker.outcry import PoisonBroadcast
from penstock.worker.probation import SuspectIsolation
from penstock.worker.runs import RunTable

__all__ = ["MUTANTS"]

# Edge.


@mutant(edge_frames, "start", break_at=(Act.KILL, "worker", Point(EXECUTE, TO_CLIENT, "step")))
def a_resumed_run_forgets_the_seed(start, passage, handle, lease):
    frame = start(passage, handle, lease)
    if frame.start.emitted:
        frame.start.sampling.seed = 0
    return frame


@mutant(edge_frames, "start", break_at=(Act.KILL, "worker", Point(EXECUTE, TO_CLIENT, "step")))
def a_resumed_run_forgets_its_position(start, passage, handle, lease):
    frame = start(passage, handle, lease)
    frame.start.emitted = 0
    return frame


@mutant(edge_frames, "start", break_at=(Act.KILL, "worker", Point(EXECUTE, TO_CLIENT, "step")))
def a_resumed_run_may_be_as_long_as_the_first(start, passage, handle, lease):
    frame = start(passage, handle, lease)
    frame.start.max_output_tokens = passage.flight.plan.max_output_tokens
    return frame


@mutant(edge_frames, "enqueue", break_at=(Act.KILL, "worker", Point(EXECUTE, TO_CLIENT, "step")))
def a_lost_run_is_enqueued_at_the_tail(enqueue, passage):
    if passage.flight.attempt > 1:
        passage.flight.enqueued_at += 1.0
    return enqueue(passage)


@mutant(edge_frames, "_ticket", world=poison_goes_on_by_an_edge_that_knows_of_no_loss)
def an_answer_goes_on_as_if_it_had_never_run(ticket, passage):
    found = ticket(passage)
    found.may_have_run = False
    return found


@mutant(OutputStream, "flush", leaves=stays)
def the_text_that_was_held_back_is_lost(rest, self):
    return []


@mutant(QueueClient, "_on_down", break_at=(Act.KILL, "queue", Point(SUBMIT, TO_CLIENT, "queued")))
def tickets_of_a_lost_shard_are_forgotten(on_down, self, address):
    return None


@mutant(WorkerConnection, "cancel", leaves=leaves_midway)
def a_cancel_never_reaches_the_worker(cancel, self, handle):
    return None


@mutant(ActiveRequest, "on_worker_lost", break_at=(Act.KILL, "worker", Point(EXECUTE, TO_CLIENT, "step")))
def a_lost_run_is_waited_for(worker_lost, self, now, *, died):
    return []


@mutant(gateway, "plan_generation", break_at=(Act.KILL, "edge", Point(EXECUTE, TO_CLIENT, "step")))
def a_resumed_answer_forgets_its_text(plan_for, spec, model, **given):
    plan = plan_for(spec, model, **given)
    fresh = model.codec.transcript(spec.input, plan.prompt_ids, spec.stop)
    return dataclasses.replace(plan, transcript=fresh)


@mutant(RequestRunner, "_emit", world=with_slow_reader)
def whatever_a_slow_client_has_not_read_is_kept(emit, self, passage, piece):
    passage.outlet.emit(piece)


@mutant(writing._WriteWatchdog, "_check", world=with_slow_reader)
def a_client_that_takes_nothing_is_waited_for(look, self):
    return None


@mutant(StallFreeClock, "at", world=edges_stand_still_while_auth_starts_again)
def an_edge_takes_its_own_standstill_for_that_of_auth(at, self, now):
    return now


# Client.


@mutant(Progress, "next_request", break_at=(Act.KILL, "edge", Point(EXECUTE, TO_CLIENT, "step")))
def the_client_lets_the_next_edge_draw_a_seed(request, self):
    found = request(self)
    if self.token_ids and not self._request.sampling.HasField("seed"):
        found.sampling.ClearField("seed")
    return found


@mutant(EdgeStream, "_on_down", break_at=(Act.CUT, "edge", Point(SESSION, TO_CLIENT, "step")))
def a_lost_session_leaves_its_requests_waiting(on_down, self, reason):
    self._stop_accepting()


# Auth.


@mutant(ReservationTable, "find", break_at=(Act.CUT, "auth", Point(ADMIT, TO_CLIENT, "admitted")))
def a_reservation_asked_for_again_is_made_again(find, self, tenant_id, request_id):
    return None


@mutant(EdgeSessions, "pop_expired", break_at=(Act.KILL, "edge", Point(EXECUTE, TO_CLIENT, "step")))
def an_edge_that_stays_away_keeps_its_reservations(lapsed, self, now):
    return []


# Queue.


@mutant(TicketBook, "on_scheduler_disconnected", break_at=(Act.KILL, "scheduler", Point(DISPATCH, TO_CLIENT, "offer")))
def what_a_dead_scheduler_was_offered_is_lost(scheduler_lost, self, scheduler, now):
    self.schedulers[scheduler].offered.clear()
    return scheduler_lost(self, scheduler, now)


@mutant(RecentLeases, "with_fingerprints", world=poison_comes_twice)
def suspects_that_have_a_lease_may_start_elsewhere(*_):
    return []


# Scheduler.


@mutant(CreditBook, "on_credit_voided")
def credit_is_not_given_back_with_a_decline(voided, self, queue):
    return None


@mutant(Dispatcher, "_remove_worker", break_at=(Act.KILL, "worker", Point(EXECUTE, TO_CLIENT, "step")))
def leases_of_a_lost_worker_are_kept(forget, self, worker):
    self.fleet.remove(worker)


# Worker.


@mutant(SchedulerClient, "send_released", leaves=hurries_off)
def the_end_of_a_cancelled_run_is_not_told(released, self, message):
    if any(each.output_tokens for each in message.served):
        released(self, message)


@mutant(RunTable, "on_engine_lost")
def runs_of_a_dead_engine_are_waited_for(engine_lost, self, error, *rest, **given):
    self.closed = error
    return []


@mutant(RunTable, "on_engine_lost", world=with_poison)
def nobody_is_put_on_probation(engine_lost, self, error, now, *, crashed=False):
    return engine_lost(self, error, now)


@mutant(SuspectIsolation, "clear_isolated", world=with_poison)
def acquitted_runs_go_on_beside_the_next_suspect(_, self):
    if self.tried and self.tried.tokens > self._mark:
        self.tried = None


@mutant(PoisonReports, "merged", world=edges_die_of_poison)
def queues_do_not_hear_of_suspects(*_):
    return ()


@mutant(PoisonRequests, "is_blocked", world=nobody_hears_of_poison)
def lost_runs_do_not_wait_for_workers_that_nobody_heard(_, self, ticket, now):
    return self.refusal(ticket.fingerprint, now) is not None


@mutant(PoisonBroadcast, "send_changes", world=poison_goes_on_while_its_scheduler_hears_nobody)
def a_workers_own_scheduler_alone_hears_of_suspects(*_):
    pass


@mutant(RunTable, "_leave_orphan", world=edges_die_of_poison)
def trials_end_with_their_clients(_, self, run, now):
    return self._end(run, refusals.deadline_passed(), now)


@mutant(Batch, "_release_cancelled", leaves=hurries_off)
def blocks_of_a_cancelled_prefill_are_kept(let_go, self):
    prefilling = {each.spec.seq_id for each in self.running if each.remaining > 1}
    release = BlockPool.release
    with patch.object(
        BlockPool, "release", lambda pool, table, who: 0 if who in prefilling else release(pool, table, who)
    ):
        return let_go(self)


@mutant(Batch, "_emit", break_at=(Act.KILL, "worker", Point(EXECUTE, TO_CLIENT, "step")))
def tokens_of_a_resumed_run_are_numbered_from_nought(emit, self, sampled, *rest):
    emit(self, sampled, *rest)
    result = rest[-1]
    result.indexes = [index - sequence.spec.emitted for index, sequence in zip(result.indexes, sampled, strict=True)]
