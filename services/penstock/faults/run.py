"""One world from its seed to its verdict."""

import asyncio
import atexit
import gc
import itertools
import random
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

from penstock.faults.checks.allowed_failures import allowed_failures
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
from penstock.faults.checks.invariants import FrameInvariants
from penstock.faults.checks.leak_check import leaked_calls, missing_processes, process_crashes, process_figures
from penstock.faults.grpc.network import DELAY_S, LATE_DELAY_S, Failpoint, Network
from penstock.faults.mutations import plan_world
from penstock.faults.nemesis import CLIENT_PROCESS, Nemesis
from penstock.faults.plan import NO_OVERRIDES, PlannedRequest, PlanOverrides, WorldPlan
from penstock.faults.world.clients import ClientTranscript, TokenCountResult, run_clients
from penstock.faults.world.disk import Disk
from penstock.faults.world.engines import EnginePool
from penstock.faults.world.environment import logs_silenced, patched_environment
from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.slow_readers import READER_WINDOW_BYTES, SLOW_READER_PROCESS, SlowReaderMonitor
from penstock.faults.world.tiers import API_KEY, Tiers
from penstock.faults.world.world import Livelock, World

BOOT_S = 0.4  # s before the first request
REQUEST_TIMEOUT_S = 45.0  # s; a request that takes longer after the last fault never ends
REST_TIMEOUT_S = 25.0  # s until nothing is left over
POLL_INTERVAL_S = 0.25  # s between looks
PROBE_PROMPT_TOKENS = 40  # tokens of the first probe; above every other prompt
PROBE_TIMEOUT_S = 10.0  # s
WORLDS_PER_COLLECTION = 8  # worlds
MAX_STEP_S = 0.02  # s; longer than any step of such an engine

_LEDGER_QUERY = """
    SELECT reservation_id, request_id, reserved_prompt_tokens, reserved_output_tokens, prompt_tokens, output_tokens,
           outcome, answer_id FROM ledger ORDER BY settled_at, reservation_id
"""
_TOTALS_QUERY = "SELECT SUM(prompt_tokens), SUM(output_tokens), SUM(requests) FROM balances"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldResult:
    """What came of one seed."""

    plan: WorldPlan
    violations: tuple[Violation, ...]
    injected: tuple[str, ...]  # faults that went off
    frames_by_failpoint: Mapping[Failpoint, int]  # frames that left, by kind
    frame_digest: int  # the same for the same seed under the same hash seed
    callbacks: int
    virtual_s: float  # that passed in the world
    requests: int


@dataclass
class WorldContext:
    """One world with all that is in it."""

    plan: WorldPlan
    world: World = field(init=False)
    network: Network = field(init=False)
    disk: Disk = field(init=False)
    engine_pool: EnginePool = field(init=False)
    tiers: Tiers = field(init=False)
    invariants: FrameInvariants = field(init=False)
    nemesis: Nemesis = field(init=False)
    slow_reader_monitor: SlowReaderMonitor = field(init=False)
    client_loops: list[ProcessLoop] = field(default_factory=list)

    def __post_init__(self) -> None:
        seed = self.plan.seed
        self.world = World(seed)
        self.network = Network(self.world, seed, late_share=self.plan.late_frame_share)
        self.disk = Disk(seed)
        self.engine_pool = EnginePool(self.network)
        self.tiers = Tiers(self.network, self.plan.shape, self.engine_pool)
        asks = [*self.plan.requests, *_probe_requests(self.plan)]
        self.engine_pool.crash_token_indexes = {
            len(ask.prompt): ask.crash_token_index for ask in self.plan.requests if ask.crash_token_index is not None
        }
        self.invariants = FrameInvariants({len(each.prompt): each for each in asks})
        self.network.on_frame = self.invariants.on_frame
        self.nemesis = Nemesis(self.tiers, self.disk, self.plan.faults, random.Random(f"{seed} nemesis"))
        self.network.window_bytes[SLOW_READER_PROCESS] = READER_WINDOW_BYTES
        self.slow_reader_monitor = SlowReaderMonitor(
            self.nemesis, sum(_is_slow_reader(ask) for ask in self.plan.requests)
        )


def run_seed(seed: int, overrides: PlanOverrides = NO_OVERRIDES, *, frame_log: list[str] | None = None) -> WorldResult:
    """`story` gets a line for each frame that leaves, but for heartbeats."""
    return run_plan(plan_world(seed, overrides), frame_log=frame_log)


def run_plan(plan: WorldPlan, *, frame_log: list[str] | None = None) -> WorldResult:
    with _discarding_leftovers():
        return _run_patched(plan, frame_log)


def _run_patched(plan: WorldPlan, frame_log: list[str] | None) -> WorldResult:
    stand = WorldContext(plan)
    stand.network.frame_log = frame_log
    with patched_environment(stand.network, stand.disk, stand.engine_pool, plan.seed):
        try:
            return _run_context(stand)
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001  # the world has set it
            sys.set_asyncgen_hooks(None, None)


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
    """Return how many requests there were, and what was wrong."""
    world, nemesis = context.world, context.nemesis
    context.tiers.start()
    world.run(lambda: False, limit=BOOT_S)
    seen = [ClientTranscript(request=ask) for ask in context.plan.requests]
    counted = [TokenCountResult(request=each) for each in context.plan.token_counts]
    nemesis.start()
    context.slow_reader_monitor.start()
    _send_all(context, seen, REQUEST_TIMEOUT_S, counted)
    nemesis.stop()
    leaks = _wait_at_rest(context)
    probes = [ClientTranscript(request=each) for each in _probe_requests(context.plan)]
    _send_all(context, probes, PROBE_TIMEOUT_S)
    leaks += _wait_at_rest(context)
    rows = [LedgerRow(*row) for row in context.disk.connection.execute(_LEDGER_QUERY)]
    everything = [*seen, *probes]
    totals = context.disk.connection.execute(_TOTALS_QUERY).fetchone()
    excused = allowed_failures(
        lambda tier: [each.downtimes_until(world.now) for each in context.tiers.of(tier)], nemesis.disturbed
    )
    violations = chain(
        check_answers(everything, excused),
        check_token_counts(counted, excused),
        check_charges(
            everything,
            rows,
            context.engine_pool.tokens_made,
            last_tickets=context.invariants.last_tickets if "edge" in nemesis.killed_tiers else {},
            may_have_lost_deferred="edge" in nemesis.stops_by_tier and "auth" in nemesis.disturbed,
        ),
        check_totals(rows, totals),
        ()
        if nemesis.injected or context.engine_pool.crashed_workers
        else check_wasted_work(seen, context.engine_pool.last_token_at, _max_cancel_delay(context.plan)),
        context.invariants.violations,
        context.slow_reader_monitor.violations.values(),
        check_poison(seen, context.engine_pool.crashed_workers, nemesis.stops_by_tier["worker"], excused),
        leaks,
        process_crashes(context.tiers),
    )
    return len(everything), tuple(violations)


def _send_all(
    context: WorldContext,
    transcripts: Sequence[ClientTranscript],
    timeout_s: float,
    token_counts: Sequence[TokenCountResult] = (),
) -> None:
    """Have clients send what is to be asked, until all is over or one takes too long after the last fault."""
    world, nemesis = context.world, context.nemesis
    slow = [each for each in transcripts if _is_slow_reader(each.request)]
    others = [each for each in transcripts if not _is_slow_reader(each.request)]
    asked = [
        _start_clients(context, CLIENT_PROCESS, others, token_counts),
        *([_start_clients(context, SLOW_READER_PROCESS, slow)] if slow else ()),
    ]

    def is_over() -> bool:
        return all(each.done() for each in asked)

    began = world.now
    while not is_over() and world.now < (
        limit := max(began, nemesis.last_fault_ends_at) + timeout_s
    ):  # what strikes moves it
        world.run(is_over, limit=limit)


def _start_clients(
    context: WorldContext,
    name: str,
    transcripts: Sequence[ClientTranscript],
    token_counts: Sequence[TokenCountResult] = (),
) -> asyncio.Task[None]:
    """A process of clients."""
    loop = context.world.add_loop(name)
    context.client_loops.append(loop)
    with context.world.running_as(loop):
        return loop.create_task(run_clients(context.plan.shape.addresses("edge"), API_KEY, transcripts, token_counts))


def _is_slow_reader(request: PlannedRequest) -> bool:
    return request.stall_after_tokens is not None


def _wait_at_rest(context: WorldContext) -> list[Violation]:
    """Wait until nothing is left over; what is, when it takes too long."""
    world, began = context.world, context.world.now
    while True:
        world.run(lambda: False, limit=world.now + POLL_INTERVAL_S)
        world.settle()
        found = [*check_residue(process_figures(context.tiers)), *leaked_calls(context.tiers)]
        found += missing_processes(context.tiers, context.nemesis.last_fault_ends_at)
        if (
            not found or world.now >= max(began, context.nemesis.last_fault_ends_at) + REST_TIMEOUT_S
        ):  # what strikes yet moves it
            return found


def _max_cancel_delay(plan: WorldPlan) -> float:
    """Seconds from a client's leaving to the last step that may count it in: three ways, and the step under way."""
    return 3 * (LATE_DELAY_S if plan.late_frame_share else DELAY_S)[1] + MAX_STEP_S


def _probe_requests(plan: WorldPlan) -> Iterator[PlannedRequest]:
    """As many short requests as all workers have slots: each slot must be there again."""
    shape = plan.shape
    for number in range(shape.slots * shape.workers):
        prompt = tuple(place % 26 for place in range(PROBE_PROMPT_TOKENS + number))
        yield PlannedRequest(starts_at=0.0, prompt=prompt, max_output_tokens=3, seed=number, ignore_eos=True)


@contextmanager
def _discarding_leftovers() -> Iterator[None]:
    """What the world's processes had under way at its end is dropped unheard; the collector comes once in a while."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with logs_silenced(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that never began
            yield
            if next(_world_numbers) % WORLDS_PER_COLLECTION == 0:
                gc.collect()
    finally:
        sys.unraisablehook = hook


def collect_finished_worlds() -> None:
    """Let go of what is left of the last worlds: processes that crashed are coroutines that nobody can end."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with logs_silenced(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            gc.collect()
    finally:
        sys.unraisablehook = hook


@atexit.register
def _collect_at_exit() -> None:
    collect_finished_worlds()
    sys.unraisablehook = lambda _: None


_world_numbers = itertools.count(1)
