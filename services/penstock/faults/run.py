"""Runs one world, from its plan to the list of violations."""

import asyncio
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from penstock.faults.batch_run import BatchRun
from penstock.faults.checks import oracle
from penstock.faults.checks.allowed_failures import AllowedFailures, allowed_failures
from penstock.faults.checks.auth_absence import auth_lost_intervals
from penstock.faults.checks.checker import (
    LedgerRow,
    Violation,
    check_answers,
    check_charges,
    check_poison,
    check_residue,
    check_token_counts,
    check_totals,
    check_wasted_work,
)
from penstock.faults.checks.invariants import MAX_FRAME_DELAY_S, FrameInvariants
from penstock.faults.checks.leak_check import leaked_calls, missing_processes, process_crashes, process_figures
from penstock.faults.checks.replicas import check_token_limits, misplaced_partitions
from penstock.faults.checks.responses import check_response_charges
from penstock.faults.grpc.network import DELAY_S, LATE_DELAY_S, Network
from penstock.faults.ledger import LEDGER_QUERY, TOTALS_QUERY
from penstock.faults.leftovers import discarding_leftovers
from penstock.faults.mutations import plan_world
from penstock.faults.nemesis import CLIENT_PROCESS, Nemesis
from penstock.faults.plan import NO_OVERRIDES, FaultKind, PlannedRequest, PlanOverrides, WorldPlan
from penstock.faults.regions.run import run_regions
from penstock.faults.response_run import ResponseRun
from penstock.faults.result import WorldResult
from penstock.faults.world.clients.clients import ClientTranscript, TokenCountResult, run_clients
from penstock.faults.world.clients.slow_readers import READER_WINDOW_BYTES, SLOW_READER_PROCESS, SlowReaderMonitor
from penstock.faults.world.engines import EnginePool
from penstock.faults.world.environment import Disks, patched_environment
from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.host_clock import EPOCH_UNIX_S
from penstock.faults.world.stores.batch_disk import BatchDisk
from penstock.faults.world.stores.disk import Disk
from penstock.faults.world.stores.response_disk import ResponseDisk
from penstock.faults.world.stores.shared_database import SharedDatabase
from penstock.faults.world.tenants import api_keys, catalog
from penstock.faults.world.tiers import Tiers
from penstock.faults.world.world import Livelock, World
from penstock.mesh.v1.batch_pb2 import RunRequest

BOOT_S = 0.4  # s before the first request
REQUEST_TIMEOUT_S = 45.0  # s; a request that has not ended this long after the last fault is a violation
REST_TIMEOUT_S = 25.0  # s; state that is left this long after the last fault is a violation
POLL_INTERVAL_S = 0.25  # s between two checks for remaining state
PROBE_PROMPT_TOKENS = 40  # tokens of the first probe, longer than every other prompt
PROBE_TIMEOUT_S = 10.0  # s
NO_AUTH = frozenset({"auth", "disk"})  # if one of them is faulty, edges defer reservations
MAX_STEP_S = 0.02  # s; longer than any step of a world's engines


@dataclass
class WorldContext:
    """All parts of one world."""

    plan: WorldPlan
    world: World = field(init=False)
    network: Network = field(init=False)
    disk: Disk = field(init=False)
    response_disk: ResponseDisk = field(init=False)
    batch_disk: BatchDisk = field(init=False)
    engine_pool: EnginePool = field(init=False)
    tiers: Tiers = field(init=False)
    invariants: FrameInvariants = field(init=False)
    nemesis: Nemesis = field(init=False)
    slow_reader_monitor: SlowReaderMonitor = field(init=False)
    responses: ResponseRun = field(init=False)
    batches: BatchRun = field(init=False)
    client_loops: list[ProcessLoop] = field(default_factory=list)

    def __post_init__(self) -> None:
        seed = self.plan.seed
        self.world = World(seed)
        if self.plan.has_own_clocks:
            self.world.clocks.update(self.plan.shape.random_clocks(random.Random(f"{seed} hosts")))
        self.network = Network(self.world, seed, late_share=self.plan.late_frame_share)
        self.disk = self._new_disk(seed)
        self.response_disk = ResponseDisk(
            random.Random(f"{seed} responses"), self._database_time, lambda: self.disk.is_full
        )
        self.responses = ResponseRun(self.plan, self.world, self.response_disk)
        self.batch_disk = BatchDisk(random.Random(f"{seed} batches"), self._database_time)
        self.batches = BatchRun(self.plan, self.world, self.batch_disk)
        self.engine_pool = EnginePool(self.network)
        self.tiers = Tiers(self.network, self.plan.shape, self.engine_pool)
        stored = [turn.request for each in self.plan.responses for turn in each.turns]
        requests = [*self.plan.requests, *stored, *self.batches.requests, *_probe_requests(self.plan)]
        self.engine_pool.crash_token_indexes = {
            len(each.prompt): each.crash_token_index for each in requests if each.crash_token_index is not None
        }
        self.invariants = FrameInvariants(
            {len(each.prompt): each for each in requests},
            oracle.versions_by_digest(self.plan.shape.block_size),
            lambda: self.world.now,
            # A frozen process sends its frames when it resumes.
            MAX_FRAME_DELAY_S + sum(each.duration_s for each in self.plan.faults if each.kind is FaultKind.FREEZE),
        )
        self.network.on_frame = self._on_frame
        self.nemesis = Nemesis(
            self.tiers,
            self.disk,
            self.batch_disk,
            self.plan.faults,
            random.Random(f"{seed} nemesis"),
            self.plan.clock_steps,
            self.plan.replacements,
        )
        self.network.window_bytes[SLOW_READER_PROCESS] = READER_WINDOW_BYTES
        self.slow_reader_monitor = SlowReaderMonitor(self.nemesis, sum(map(_is_slow_reader, self.plan.requests)))

    def _database_time(self) -> float:
        return EPOCH_UNIX_S + self.world.now

    def _on_frame(self, kind: str, frame: Any) -> None:
        if not isinstance(frame, RunRequest):  # its `start` is another one than a worker's
            self.invariants.on_frame(kind, frame)

    def _new_disk(self, seed: int) -> Disk:
        if self.plan.shape.auths == 1:
            return Disk(seed)
        database = SharedDatabase(self.world, seed)
        database.put_catalog(list(catalog(self.plan.tenants)))
        return database


def run_seed(seed: int, overrides: PlanOverrides = NO_OVERRIDES, *, frame_log: list[str] | None = None) -> WorldResult:
    """Run the world of one seed; `frame_log` receives a line for each frame sent, except heartbeats."""
    return run_plan(plan_world(seed, overrides), frame_log=frame_log)


def run_plan(plan: WorldPlan, *, frame_log: list[str] | None = None) -> WorldResult:
    with discarding_leftovers():
        return run_regions(plan, plan.border, frame_log) if plan.border else _run_patched(plan, frame_log)


def _run_patched(plan: WorldPlan, frame_log: list[str] | None) -> WorldResult:
    context = WorldContext(plan)
    context.network.frame_log = frame_log
    disks = Disks(context.disk, context.response_disk, context.batch_disk)
    with (
        patched_environment(context.network, disks, context.engine_pool, plan.seed),
        context.batches.recording_starts(),
    ):
        return _run_context(context)


def _run_context(context: WorldContext) -> WorldResult:
    try:
        requests, violations = _run_requests_and_checks(context)
    except Livelock as livelock:
        requests, violations = len(context.plan.requests), (Violation("livelock", str(livelock)),)
    return WorldResult(
        plan=context.plan,
        violations=violations,
        injected=tuple(context.nemesis.injected),
        frames_by_failpoint=context.network.frames_by_failpoint,
        frame_digest=context.network.frame_digest,
        callbacks=context.world.callbacks,
        virtual_s=context.world.now,
        requests=requests,
    )


def _run_requests_and_checks(context: WorldContext) -> tuple[int, tuple[Violation, ...]]:
    """Return the number of requests, and the violations."""
    world, nemesis = context.world, context.nemesis
    context.tiers.start()
    world.run(lambda: False, limit=BOOT_S)
    transcripts = [ClientTranscript(request=each) for each in context.plan.requests]
    token_counts = [TokenCountResult(request=each) for each in context.plan.token_counts]
    nemesis.start()
    context.slow_reader_monitor.start()
    others = chain(context.responses.start_clients(), context.batches.start_clients())
    _send_all(context, transcripts, REQUEST_TIMEOUT_S, others, token_counts)
    nemesis.stop()
    leaks = _wait_at_rest(context)
    probes = [ClientTranscript(request=each) for each in _probe_requests(context.plan)]
    audits = chain(context.responses.start_audit(), context.batches.start_audit())
    _send_all(context, probes, PROBE_TIMEOUT_S, audits)
    leaks += _wait_at_rest(context)
    all_transcripts = [*transcripts, *probes]
    allowed = _allowed_failures(context)
    violations = chain(
        check_answers(all_transcripts, allowed),
        check_token_counts(token_counts, allowed),
        context.responses.violations(
            has_faults=bool(nemesis.injected),
            was_store_away=bool(NO_AUTH & nemesis.disturbed.keys()),
            now=EPOCH_UNIX_S + world.now,
        ),
        context.batches.violations(has_faults=bool(nemesis.injected)),
        *(_charge_violations(context, all_transcripts, number) for number in range(len(context.plan.tenants))),
        _replica_violations(context),
        ()
        if nemesis.injected or context.engine_pool.crashed_workers
        else check_wasted_work(transcripts, context.engine_pool.last_token_at, _max_cancel_delay(context.plan)),
        context.invariants.violations,
        context.slow_reader_monitor.violations.values(),
        check_poison(
            transcripts,
            context.engine_pool.crashed_workers,
            nemesis.stops_by_tier["worker"],
            allowed,
        ),
        leaks,
        process_crashes(context.tiers),
    )
    return len(all_transcripts), tuple(violations)


def _allowed_failures(context: WorldContext) -> AllowedFailures:
    nemesis, tiers = context.nemesis, context.tiers
    absences = [nemesis.auth_absences.get(each.name, []) for each in tiers.of("auth")]
    return allowed_failures(
        lambda tier: [each.downtimes_until(context.world.now) for each in tiers.at_home(tier)],
        nemesis.disturbed,
        context.engine_pool.replaced_at,
        auth_lost_intervals(absences) if len(absences) > 1 else None,
        has_limits=any(each.is_limited for each in context.plan.tenants),
    )


def _charge_violations(
    context: WorldContext, transcripts: Sequence[ClientTranscript], number: int
) -> Iterator[Violation]:
    """Check what one tenant was charged."""
    nemesis, tenant = context.nemesis, (context.plan.tenants[number].tenant_id,)
    rows = [LedgerRow(*row) for row in context.disk.connection.execute(LEDGER_QUERY, tenant)]
    stored = context.responses.prompt_lengths | context.batches.prompt_lengths
    tokens_made = context.engine_pool.tokens_made
    may_have_lost_deferred = "edge" in nemesis.stops_by_tier and bool(NO_AUTH & nemesis.disturbed.keys())
    was_edge_killed = "edge" in nemesis.killed_tiers
    yield from check_charges(
        [each for each in transcripts if each.request.tenant == number],
        [row for row in rows if row.reserved_prompt not in stored],
        tokens_made,
        last_tickets=context.invariants.last_tickets if was_edge_killed else {},
        may_have_lost_deferred=may_have_lost_deferred,
    )
    yield from check_response_charges(
        context.responses.of_tenant(number),
        rows,
        tokens_made,
        was_edge_killed=was_edge_killed,
        may_have_lost_deferred=may_have_lost_deferred,
    )
    may_lack_rows = bool(nemesis.injected_kinds - {FaultKind.TERM})  # a process that drains loses no answer
    yield from context.batches.charge_violations(number, rows, may_lack_rows=may_lack_rows)
    yield from check_totals(rows, context.disk.connection.execute(TOTALS_QUERY, tenant).fetchone())


def _replica_violations(context: WorldContext) -> Iterator[Violation]:
    if isinstance(context.disk, SharedDatabase):
        yield from (Violation("owner", each) for each in context.disk.violations)
        yield from check_token_limits(context.disk, context.plan.tenants, context.world.now)


def _send_all(
    context: WorldContext,
    transcripts: Sequence[ClientTranscript],
    timeout_s: float,
    others_started: Iterable[asyncio.Task[None]],
    token_counts: Sequence[TokenCountResult] = (),
) -> None:
    """Send all requests; return when they and other clients have ended, or `timeout_s` after the last fault."""
    world, nemesis = context.world, context.nemesis
    slow = [each for each in transcripts if _is_slow_reader(each.request)]
    others = [each for each in transcripts if not _is_slow_reader(each.request)]
    tasks = [
        _start_clients(context, CLIENT_PROCESS, others, token_counts),
        *([_start_clients(context, SLOW_READER_PROCESS, slow)] if slow else ()),
        *others_started,
    ]

    def have_ended() -> bool:
        return all(each.done() for each in tasks)

    started_at = world.now
    # A fault that is injected meanwhile moves the limit.
    while not have_ended() and world.now < (limit := max(started_at, nemesis.last_fault_ends_at) + timeout_s):
        world.run(have_ended, limit=limit)
    for each in tasks:
        if each.done():
            each.result()  # raises an error of a client itself


def _start_clients(
    context: WorldContext,
    name: str,
    transcripts: Sequence[ClientTranscript],
    token_counts: Sequence[TokenCountResult] = (),
) -> asyncio.Task[None]:
    """Start a process that runs one client for each transcript and token count."""
    loop = context.world.add_loop(name)
    context.client_loops.append(loop)
    with context.world.running_as(loop):
        edges, versions = context.plan.shape.addresses("edge"), context.invariants.versions
        keys = api_keys(context.plan.tenants)
        return loop.create_task(run_clients(edges, keys, versions, transcripts, token_counts))


def _is_slow_reader(request: PlannedRequest) -> bool:
    return request.stall_after_tokens is not None


def _wait_at_rest(context: WorldContext) -> list[Violation]:
    """Wait until no process has state of a request; return the remaining state if that takes too long."""
    world, nemesis, started_at = context.world, context.nemesis, context.world.now
    while True:
        world.run(lambda: False, limit=world.now + POLL_INTERVAL_S)
        world.settle()
        leaks = [*check_residue(process_figures(context.tiers)), *leaked_calls(context.tiers)]
        leaks += context.batches.remains()
        leaks += missing_processes(context.tiers, nemesis.last_fault_ends_at)
        if isinstance(context.disk, SharedDatabase):
            leaks += misplaced_partitions(context.disk, context.tiers.of("auth"), context.network)
        # A fault that is injected meanwhile moves the limit.
        if not leaks or world.now >= max(started_at, nemesis.last_fault_ends_at) + REST_TIMEOUT_S:
            return leaks


def _max_cancel_delay(plan: WorldPlan) -> float:
    """Return the time in s from a client's cancel to the last step with its sequence: three hops and one step.

    To another region there are two hops more.
    """
    return (5 if plan.shape.other else 3) * (LATE_DELAY_S if plan.late_frame_share else DELAY_S)[1] + MAX_STEP_S


def _probe_requests(plan: WorldPlan) -> Iterator[PlannedRequest]:
    """Yield one short request for each slot of each worker: all slots must be free again after the faults."""
    shape = plan.shape
    tenants = [number for number, each in enumerate(plan.tenants) if not each.is_limited]
    for number in range(shape.slots * shape.workers):
        prompt = tuple(place % 26 for place in range(PROBE_PROMPT_TOKENS + number))
        tenant = tenants[number % len(tenants)]
        yield PlannedRequest(
            starts_at=0.0, prompt=prompt, max_output_tokens=3, seed=number, ignore_eos=True, tenant=tenant
        )
