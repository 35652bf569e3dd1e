"""Mutants of batches: bugs of the batch tier and of lines at edges, which worlds with batches must find."""

from dataclasses import replace

from mutant_registry import ADMIT, ATTACH, EXECUTE, mutant
from penstock.auth.quota.answer_billing import ChargeDelta, DelegatedAnswers
from penstock.batch.jobs.chunks import ChunkState
from penstock.batch.runner import held
from penstock.batch.runner.edges import EdgeLinks
from penstock.batch.runner.held import HeldChunks
from penstock.batch.store import jobs
from penstock.batch.store.operations import BatchOperations, LockedChunk
from penstock.chassis.errors import Unavailable
from penstock.edge.api.lines import call
from penstock.edge.api.lines.service import _LineStream
from penstock.edge.api.lines.settlements import LineSettlements, _HeldSettlement
from penstock.faults.batch_plans import BATCH_FAILPOINTS, FIRST_LENGTH, with_batches
from penstock.faults.checks import oracle
from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Failpoint
from penstock.faults.plan import FaultKind, PlannedFault
from penstock.faults.planned_batch import LineDefect
from penstock.faults.world.stores import batch_disk

RUN = BATCH_FAILPOINTS[0].method
RUNNING, ENDED = (Failpoint(RUN, TO_CLIENT, kind) for kind in ("running", "ended"))
CREATED = Failpoint(BATCH_FAILPOINTS[-1].method, TO_CLIENT, "")  # the first answer
STEP, SETTLE = Failpoint(EXECUTE, TO_CLIENT, "step"), Failpoint(ADMIT, TO_SERVER, "settle")
MANY_LINES = 20  # more than the mesh takes at once


def with_plain_batches(plan, rng, **fields):
    """One batch at two edges, without bad lines and without other requests that are special."""
    requests = tuple(replace(each, crash_token_index=None, stall_after_tokens=None) for each in plan.requests)
    planned = with_batches(replace(plan, requests=requests, faults=()), rng)
    lines = tuple(
        replace(each, defect=LineDefect.NONE, crash_token_index=None, custom_id=f"line-{number}")
        for number, each in enumerate(planned.batches[0].lines)
    )
    given = {"window_s": None, "cancels_after_s": None, **fields}
    shape = replace(planned.shape, response_buffer_bytes=65_536)
    return replace(planned, shape=shape, batches=(replace(planned.batches[0], lines=lines, **given),))


def _fault(kind, tier, failpoint, frame_number=1, **fields):
    given = {"duration_s": 0.3, "victim_pick": 0.9} | fields
    return PlannedFault(kind=kind, victim_tier=tier, failpoint=failpoint, frame_number=frame_number, **given)


def batches_with_killed_replica(plan, rng):
    """A replica is killed while its lines run."""
    failpoint = rng.choice((RUNNING, ENDED))
    killed = _fault(FaultKind.KILL, "batch", failpoint, rng.randint(1, 3))
    return replace(with_plain_batches(plan, rng), faults=(killed,))


def batches_with_drained_edge(plan, rng):
    """An edge drains while it runs lines."""
    drained = _fault(FaultKind.TERM, "edge", STEP, rng.randint(3, 12))
    return replace(with_plain_batches(plan, rng), requests=(), token_counts=(), faults=(drained,))


def batches_while_the_store_is_away(plan, rng):
    """The database is lost while results are committed."""
    away = _fault(FaultKind.STORE_AWAY, "batch", ENDED, duration_s=2.0)
    return replace(with_plain_batches(plan, rng), faults=(away,))


def batches_while_auth_and_edge_die(plan, rng):
    """Auth dies as a line is settled, and soon after it the edge."""
    faults = (
        _fault(FaultKind.KILL, "auth", SETTLE, rng.randint(1, 3)),
        _fault(FaultKind.KILL, "edge", ENDED, rng.randint(1, 4)),
    )
    return replace(with_plain_batches(plan, rng), requests=(), token_counts=(), faults=faults)


def batches_cancelled(plan, rng, line_count=MANY_LINES):
    """Clients cancel while lines run and others wait."""
    planned = with_plain_batches(plan, rng, cancels_after_s=rng.uniform(0.5, 1.5))
    (batch,) = planned.batches
    lines = tuple(
        replace(
            batch.lines[0],
            custom_id=f"line-{number}",
            text=oracle.text_of([each % oracle.LETTERS for each in range(FIRST_LENGTH + number)]),
            max_output_tokens=24,
            ignore_eos=True,
        )
        for number in range(line_count)
    )
    shape = replace(planned.shape, workers=1, slots=1, token_budget=8)
    return replace(planned, shape=shape, requests=(), token_counts=(), batches=(replace(batch, lines=lines),))


def batches_cancelled_beside_a_replica_without_store(plan, rng):
    """One of two replicas loses the database before a cancel, which the other one answers."""
    away = _fault(FaultKind.STORE_AWAY, "batch", RUNNING, duration_s=4.0, victim_pick=rng.choice((0.1, 0.4)))
    planned = batches_cancelled(plan, rng, 2 * MANY_LINES)
    (batch,) = planned.batches
    return replace(planned, batches=(replace(batch, cancels_after_s=rng.uniform(0.4, 0.6)),), faults=(away,))


def batches_cancelled_while_an_edge_drains(plan, rng):
    """An edge drains as it charges a line, and soon after it the client cancels."""
    drained = _fault(FaultKind.TERM, "edge", SETTLE, rng.randint(1, 6))
    return replace(batches_cancelled(plan, rng), faults=(drained,))


def batches_whose_creation_is_repeated(plan, rng):
    """The answer of a creation is lost with its replica, and the client calls again."""
    killed = _fault(FaultKind.KILL, "batch", CREATED, victim_pick=rng.choice((0.1, 0.9)))
    return replace(with_plain_batches(plan, rng), requests=(), token_counts=(), faults=(killed,))


def crashing_line_at_another_edge(plan, rng):
    """A line crashes an engine while all schedulers are down, and its edge dies as well."""
    planned = with_plain_batches(plan, rng)
    (batch,) = planned.batches
    line = replace(batch.lines[0], defect=LineDefect.CRASHING, crash_token_index=3, max_output_tokens=9)
    faults = (
        _fault(FaultKind.KILL, "scheduler", Failpoint(ATTACH, TO_SERVER, "started")),
        _fault(FaultKind.KILL, "edge", STEP, 3, duration_s=2.0),
    )
    return replace(
        planned,
        shape=replace(planned.shape, schedulers=1, workers=2),
        requests=(),
        token_counts=(),
        batches=(replace(batch, lines=(replace(line, ignore_eos=True),)),),
        faults=faults,
    )


def batches_of_bad_lines(plan, rng):
    planned = with_plain_batches(plan, rng)
    (batch,) = planned.batches
    bad = replace(batch.lines[0], defect=LineDefect.WRONG_METHOD)
    return replace(planned, batches=(replace(batch, lines=(bad, *batch.lines[1:])),))


def batches_on_hosts_with_wrong_clocks(plan, rng):
    return replace(with_plain_batches(plan, rng), has_own_clocks=True)


@mutant(jobs, "claim_job", mutate_plan=batches_cancelled)
def an_output_does_not_wait_for_the_lines_that_run(claim_job, transaction, lease_s):
    transaction.run("UPDATE chunks SET lease_until = 0 WHERE number IN (SELECT number FROM batches WHERE status = 7)")
    return claim_job(transaction, lease_s)


@mutant(DelegatedAnswers, "charge", mutate_plan=batches_with_killed_replica)
def each_run_of_a_line_is_charged(charge, self, key, tenant_id, *tokens):
    return ChargeDelta(*tokens)


@mutant(_HeldSettlement, "drop", mutate_plan=batches_cancelled)
def a_line_that_is_given_back_is_charged(drop, self):
    self.is_dropped = True
    settlement, self.settlement = self.settlement, None
    if settlement:
        self.send(settlement)


@mutant(LineSettlements, "settle", mutate_plan=batches_while_auth_and_edge_die)
async def a_line_ends_before_its_charge_is_recorded(settle, self):
    held, self._held = self._held, []
    for each in held:
        each.settle(lambda: None)


@mutant(_LineStream, "_stop", mutate_plan=batches_cancelled)
def a_line_is_given_back_after_its_charge(stop, self, number):
    self._give_back(number, Unavailable("stopped", reason="LINE_STOPPED", retry_after=0.0))


@mutant(_LineStream, "release", mutate_plan=batches_cancelled_while_an_edge_drains)
def a_draining_edge_gives_back_a_line_that_it_has_charged(release, self):
    release(self)
    for number in list(self.runs):
        self._give_back(number, Unavailable("this edge drains", reason="DRAINING", retry_after=0.0))


@mutant(LockedChunk, "state_under", mutate_plan=batches_cancelled)
def a_cancel_stops_no_line(state_under, self, epoch):
    state = state_under(self, epoch)
    return ChunkState.HELD if state is ChunkState.STOPPED else state


@mutant(HeldChunks, "next_line", mutate_plan=batches_cancelled_beside_a_replica_without_store)
def a_chunk_starts_lines_without_a_recent_confirmation(next_line, self, edge, now):
    for each in self:
        each.confirmed_at = now
    return next_line(self, edge, now)


@mutant(call, "resumed_spec", mutate_plan=batches_with_drained_edge)
def a_continued_line_begins_again(resumed_spec, spec, state):
    return spec


@mutant(held, "error_row", mutate_plan=batches_of_bad_lines)
def a_bad_line_loses_its_custom_id(error_row, call_id, custom_id, **error):
    return error_row(call_id, "", **error)


@mutant(BatchOperations, "put_results", mutate_plan=batches_while_the_store_is_away)
def a_result_that_is_repeated_is_counted_again(put_results, self, transaction, results):
    stored = put_results(self, transaction, results)
    for each, is_new in zip(results, stored, strict=True):
        if not is_new:
            transaction.run("UPDATE batches SET completed = completed + 1 WHERE batch_id = ?", each.key.batch_id)
    return stored


@mutant(batch_disk, "database_clock", mutate_plan=batches_on_hosts_with_wrong_clocks)
def a_replica_keeps_its_own_time(database_clock, database, clock):
    return clock


@mutant(EdgeLinks, "start", mutate_plan=crashing_line_at_another_edge)
def an_edge_is_not_told_that_a_line_may_have_run(start, self, line, now):
    line.may_have_run = False
    return start(self, line, now)


@mutant(BatchOperations, "create", mutate_plan=batches_whose_creation_is_repeated)
def an_idempotency_key_has_no_effect(create, self, transaction, batch, idempotency_key=""):
    return create(self, transaction, batch)


BATCH_MUTANTS = (
    an_output_does_not_wait_for_the_lines_that_run,
    each_run_of_a_line_is_charged,
    a_line_that_is_given_back_is_charged,
    a_line_ends_before_its_charge_is_recorded,
    a_line_is_given_back_after_its_charge,
    a_draining_edge_gives_back_a_line_that_it_has_charged,
    a_cancel_stops_no_line,
    a_chunk_starts_lines_without_a_recent_confirmation,
    a_continued_line_begins_again,
    a_bad_line_loses_its_custom_id,
    a_result_that_is_repeated_is_counted_again,
    a_replica_keeps_its_own_time,
    an_edge_is_not_told_that_a_line_may_have_run,
    an_idempotency_key_has_no_effect,
)
