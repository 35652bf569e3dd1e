"""Runs one world of several regions, from its plan to the list of violations."""

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from penstock.faults.checks import oracle
from penstock.faults.checks.allowed_failures import LIMIT_REASONS, AllowedFailures, Interval, allowed_failures
from penstock.faults.checks.checker import (
    REVOKED_REASON,
    LedgerRow,
    Violation,
    check_answers,
    check_residue,
    check_totals,
    check_wasted_work,
)
from penstock.faults.checks.invariants import MAX_FRAME_DELAY_S, FrameInvariants
from penstock.faults.checks.leak_check import leaked_calls, missing_processes, process_crashes, process_figures
from penstock.faults.checks.regions import (
    RegionLedger,
    RegionStream,
    RegionWatch,
    check_links,
    check_offers,
    check_region_charges,
    check_spills,
    prompt_tokens_of,
)
from penstock.faults.grpc.network import DELAY_S, LATE_DELAY_S, TO_CLIENT
from penstock.faults.ledger import LEDGER_QUERY, TOTALS_QUERY
from penstock.faults.nemesis import CLIENT_PROCESS
from penstock.faults.plan import FaultKind, PlannedBorder, PlannedRequest, WorldPlan
from penstock.faults.regions.border import BorderFrame, BorderNetwork
from penstock.faults.regions.disks import RegionDisks
from penstock.faults.regions.home_plans import auth_door_of
from penstock.faults.regions.home_run import HomeRun, region_disks, set_clocks
from penstock.faults.regions.nemesis import RegionNemesis
from penstock.faults.regions.plans import addresses_of_edges, door_of
from penstock.faults.result import WorldResult
from penstock.faults.world.clients.clients import ClientTranscript, run_clients
from penstock.faults.world.engines import EnginePool
from penstock.faults.world.environment import Disks, patched_environment
from penstock.faults.world.host_clock import EPOCH_UNIX_S
from penstock.faults.world.stores.batch_disk import BatchDisk
from penstock.faults.world.stores.response_disk import ResponseDisk
from penstock.faults.world.tenants import api_keys
from penstock.faults.world.tiers import Tiers
from penstock.faults.world.world import Livelock, World
from penstock.mesh.regions import REGION_NOT_ALLOWED, is_region_allowed
from penstock.mesh.v1.region_pb2 import RegionServiceRunRequest, RegionServiceRunResponse
from penstock.mesh.v1.worker_pb2 import ExecuteRequest

BOOT_S = 1.5  # s before the first request; edges are connected to the other regions
REQUEST_TIMEOUT_S = 45.0  # s; a request that has not ended this long after the last fault is a violation
REST_TIMEOUT_S = 30.0  # s; state that is left this long after the last fault is a violation
POLL_INTERVAL_S = 0.25  # s between two checks for remaining state
PROBE_PROMPT_TOKENS = 40  # tokens of the first probe
PROBE_TIMEOUT_S = 10.0  # s
MAX_CALLBACKS = 600_000  # of a world; each region has the processes of a mesh
MAX_STEP_S = 0.02  # s; longer than any step of a world's engines
CANCEL_HOPS = 5  # from a client's cancel to an engine of another region
REACTION_S = 1.0  # s in which an edge that is not frozen acts on the end of a client's call
HOLDING_FAULTS = frozenset({FaultKind.FREEZE, FaultKind.PARTITION, FaultKind.CUT})  # they delay frames
NO_AUTH = frozenset({"auth", "disk"})  # if one of them is faulty, edges defer reservations
ALWAYS = Interval(0.0, math.inf)
LATE_REASON = "OVERLOADED"  # the first token is predicted too late
OVERLOAD_REASONS = ("QUEUE_FULL", "EVICTED")  # of a region whose queue lets one ticket wait


@dataclass
class RegionContext:
    """All parts of one world of several regions."""

    plan: WorldPlan
    border: PlannedBorder
    world: World = field(init=False)
    network: BorderNetwork = field(init=False)
    disks: RegionDisks = field(init=False)
    engine_pool: EnginePool = field(init=False)
    tiers: Tiers = field(init=False)
    invariants: FrameInvariants = field(init=False)
    watch: RegionWatch = field(init=False)
    nemesis: RegionNemesis = field(init=False)
    home: HomeRun | None = field(init=False)  # None: each region has tenants of its own

    def __post_init__(self) -> None:
        plan, seed = self.plan, self.plan.seed
        self.world = World(seed, max_callbacks=MAX_CALLBACKS)
        if plan.has_own_clocks:
            self.world.clocks.update(plan.shape.random_clocks(random.Random(f"{seed} hosts")))
        if self.border.home:
            set_clocks(plan, self.border.home, self.world)
        doors = {door_of(each): each.addresses("edge") for each in plan.shape.regions}
        doors |= {auth_door_of(each): each.addresses("auth") for each in plan.shape.regions}
        self.network = BorderNetwork(
            self.world, seed, late_share=plan.late_frame_share, trip_s=self.border.trip_s, doors=doors
        )
        self.disks = region_disks(plan, self.border, self.world)
        self.engine_pool = EnginePool(self.network)
        self.tiers = Tiers(self.network, plan.shape, self.engine_pool)
        requests = {len(each.prompt): each for each in (*plan.requests, *self.probes)}
        self.invariants = FrameInvariants(
            requests,
            oracle.versions_by_digest(plan.shape.block_size),
            lambda: self.world.now,
            MAX_FRAME_DELAY_S + self.frozen_s,
        )
        tenants = plan.tenants
        self.watch = RegionWatch({length: tenants[each.tenant].allowed_regions for length, each in requests.items()})
        self.home = HomeRun(plan, self.border.home, self.tiers, self.disks) if self.border.home else None
        self.network.on_frame = self.invariants.on_frame
        self.network.on_border_frame = self._on_frame
        self.nemesis = RegionNemesis(
            self.tiers,
            self.disks.by_region[self.names[0]],
            BatchDisk(random.Random(f"{seed} batches"), self.database_time),
            plan.faults,
            random.Random(f"{seed} nemesis"),
            plan.clock_steps,
            border=self.network,
            disks=self.disks.by_region,
        )

    @property
    def names(self) -> list[str]:
        return [each.region for each in self.plan.shape.regions]

    @property
    def frozen_s(self) -> float:
        """All freezes together, in s. A frozen process sends its frames when it resumes."""
        return sum(each.duration_s for each in self.plan.faults if each.kind is FaultKind.FREEZE)

    @property
    def probes(self) -> list[PlannedRequest]:
        """One short request for each slot of each worker, in its region: all slots must be free after the faults."""
        probes: list[PlannedRequest] = []
        for region, shape in enumerate(self.plan.shape.regions):
            for _ in range(shape.slots * shape.workers):
                prompt = tuple(place % oracle.LETTERS for place in range(PROBE_PROMPT_TOKENS + len(probes)))
                probes.append(
                    PlannedRequest(
                        starts_at=0.1 * len(probes) if shape.max_depth == 1 else 0.0,
                        prompt=prompt,
                        max_output_tokens=3,
                        seed=len(probes),
                        ignore_eos=True,
                        region=region,
                    )
                )
        return probes

    def database_time(self) -> float:
        return EPOCH_UNIX_S + self.world.now

    def _on_frame(self, sent: BorderFrame) -> None:
        match sent.frame:
            case ExecuteRequest() if sent.kind == "start":
                self.watch.on_start(sent.direction.receiver, prompt_tokens_of(sent.frame.start))
            case RegionServiceRunRequest():
                home = sent.stream.connection.loops[TO_CLIENT].name
                stream = RegionStream(id(sent.stream), home, sent.direction.receiver, lambda: sent.stream.is_open)
                self.watch.on_request_frame(sent.at, stream, sent.frame)
            case RegionServiceRunResponse():
                self.watch.on_response_frame(sent.at, id(sent.stream), sent.frame)


def run_regions(plan: WorldPlan, border: PlannedBorder, frame_log: list[str] | None) -> WorldResult:
    context = RegionContext(plan, border)
    context.network.frame_log = frame_log
    responses = ResponseDisk(random.Random(f"{plan.seed} responses"), context.database_time, lambda: False)
    disks = Disks(context.disks, responses, context.nemesis.batch_disk)
    with patched_environment(context.network, disks, context.engine_pool, plan.seed):
        try:
            violations = tuple(_run_requests_and_checks(context))
        except Livelock as livelock:
            violations = (Violation("livelock", str(livelock)),)
    return WorldResult(
        plan=plan,
        violations=violations,
        injected=tuple(context.nemesis.injected),
        frames_by_failpoint=context.network.frames_by_failpoint,
        frame_digest=context.network.frame_digest,
        callbacks=context.world.callbacks,
        virtual_s=context.world.now,
        requests=len(plan.requests) + len(context.probes),
    )


def _run_requests_and_checks(context: RegionContext) -> Iterator[Violation]:
    """Run the world and yield its violations."""
    world, nemesis, plan = context.world, context.nemesis, context.plan
    context.tiers.start()
    world.run(lambda: False, limit=BOOT_S)
    transcripts = [ClientTranscript(request=each) for each in plan.requests]
    nemesis.start()
    if context.home:
        context.home.start()
    _send_all(context, transcripts, REQUEST_TIMEOUT_S)
    nemesis.stop()
    leaks = _wait_at_rest(context)
    probes = [ClientTranscript(request=each) for each in context.probes]
    _send_all(context, probes, PROBE_TIMEOUT_S)
    leaks += _wait_at_rest(context)
    everything = [*transcripts, *probes]
    yield from chain.from_iterable(_tenant_violations(context, everything, each) for each in range(len(plan.tenants)))
    if not nemesis.injected:
        late_s = CANCEL_HOPS * (_longest_hop(context) + context.border.trip_s) + MAX_STEP_S
        yield from check_wasted_work(transcripts, context.engine_pool.last_token_at, late_s)
    yield from context.invariants.violations
    yield from context.watch.violations
    yield from check_offers(context.watch, everything, _longest_way(context))
    yield from check_spills(context.watch.started, must_spill=context.border.must_spill)
    if context.home:
        yield from context.home.violations(nemesis.last_fault_ends_at)
    yield from leaks
    yield from process_crashes(context.tiers)


def _tenant_violations(
    context: RegionContext, transcripts: Sequence[ClientTranscript], number: int
) -> Iterator[Violation]:
    """Check the answers and the charges of one tenant."""
    nemesis, tenant = context.nemesis, context.plan.tenants[number]
    own = [each for each in transcripts if each.request.tenant == number]
    for transcript in own:
        yield from check_answers([transcript], _allowed(context, transcript.request))
    ledgers = [RegionLedger(name, _rows(context, name, tenant.tenant_id)) for name in context.names]
    is_without_auth = bool(NO_AUTH & nemesis.disturbed.keys())
    yield from check_region_charges(
        own,
        ledgers,
        context.engine_pool.tokens_made,
        allowed=tenant.allowed_regions,
        last_tickets=context.invariants.last_tickets if "edge" in nemesis.killed_tiers else {},
        may_have_lost_deferred="edge" in nemesis.stops_by_tier and is_without_auth,
    )
    for ledger in ledgers:
        totals = context.disks.by_region[ledger.region].connection.execute(TOTALS_QUERY, (tenant.tenant_id,))
        yield from check_totals(ledger.rows, totals.fetchone())


def _rows(context: RegionContext, region: str, tenant_id: str) -> list[LedgerRow]:
    connection = context.disks.by_region[region].connection
    return [LedgerRow(*row) for row in connection.execute(LEDGER_QUERY, (tenant_id,))]


def _allowed(context: RegionContext, request: PlannedRequest) -> AllowedFailures:
    """Return the errors that the client of a request may receive.

    A client is served by another region while its own is down, so that the downtimes of all regions count. A region
    that is overloaded rejects tenants that must stay, and all if faults or overload keep others away. A client in a
    region that its tenant does not allow depends on the link. A request is rejected if it would miss its own deadline.
    """
    nemesis, plan = context.nemesis, context.plan
    regions = plan.tenants[request.tenant].allowed_regions
    allowed: dict[str, list[Interval]] = {}
    for shape in plan.shape.regions:
        for reason, intervals in allowed_failures(_downtimes(context, shape.region), nemesis.disturbed).items():
            allowed.setdefault(reason, []).extend(intervals)
    is_overloaded = plan.shape.max_depth == 1
    if is_overloaded and (regions or not context.border.must_spill):
        allowed |= {reason: [ALWAYS] for reason in OVERLOAD_REASONS}
    if request.timeout_s is not None:
        allowed[LATE_REASON] = [ALWAYS]
    if plan.tenants[request.tenant].is_limited:
        allowed |= {reason: [ALWAYS] for reason in LIMIT_REASONS}
    if context.home and request.tenant in context.home.revoked_tenants:
        allowed[REVOKED_REASON] = [ALWAYS]
    if not is_region_allowed(regions, context.names[request.region]) and nemesis.injected:
        allowed |= {reason: [ALWAYS] for reason in ("CONNECTION_LOST", REGION_NOT_ALLOWED)}
    return allowed


def _downtimes(context: RegionContext, region: str) -> Callable[[str], list[list[Interval]]]:
    def of_tier(tier: str) -> list[list[Interval]]:
        processes = [each for each in context.tiers.of(tier) if each.name.startswith(f"{region}-")]
        return [each.downtimes_until(context.world.now) for each in processes]

    return of_tier


def _longest_hop(context: RegionContext) -> float:
    return (LATE_DELAY_S if context.plan.late_frame_share else DELAY_S)[1]


def _longest_way(context: RegionContext) -> float:
    """Return the longest time in s from the end at a client to the end of its request in another region."""
    faults = context.plan.faults
    held_s = sum(each.duration_s for each in faults if each.kind in HOLDING_FAULTS)
    added_s = sum(each.added_delay_s for each in faults if each.kind is FaultKind.SLOW_LINK)
    return REACTION_S + CANCEL_HOPS * (_longest_hop(context) + context.border.trip_s + added_s) + held_s


def _send_all(context: RegionContext, transcripts: Sequence[ClientTranscript], timeout_s: float) -> None:
    """Send all requests; return when they have ended, or `timeout_s` after the last fault."""
    world, nemesis = context.world, context.nemesis
    tasks = [_start_clients(context, number, transcripts) for number in range(len(context.names))]

    def have_ended() -> bool:
        return all(each.done() for each in tasks)

    started_at = world.now
    # A fault that is injected meanwhile moves the limit.
    while not have_ended() and world.now < (limit := max(started_at, nemesis.last_fault_ends_at) + timeout_s):
        world.run(have_ended, limit=limit)
    for each in tasks:
        if each.done():
            each.result()  # raises an error of a client itself


def _start_clients(context: RegionContext, region: int, transcripts: Sequence[ClientTranscript]) -> asyncio.Task[None]:
    """Start a process with the clients of one region, which go to the other regions if theirs is down."""
    own = [each for each in transcripts if each.request.region == region]
    targets, failover = addresses_of_edges(context.plan.shape, region)
    loop = context.world.add_loop(f"{context.names[region]}-{CLIENT_PROCESS}")
    with context.world.running_as(loop):
        keys, versions = api_keys(context.plan.tenants), context.invariants.versions
        return loop.create_task(run_clients(targets, keys, versions, own, failover=failover))


def _wait_at_rest(context: RegionContext) -> list[Violation]:
    """Wait until no process has state of a request; return the remaining state if that takes too long."""
    world, nemesis, started_at = context.world, context.nemesis, context.world.now
    while True:
        world.run(lambda: False, limit=world.now + POLL_INTERVAL_S)
        world.settle()
        figures = process_figures(context.tiers)
        leaks = [*check_residue(figures), *leaked_calls(context.tiers)]
        leaks += missing_processes(context.tiers, nemesis.last_fault_ends_at)
        leaks += check_links(figures, len(context.names) - 1)
        leaks += context.home.leftovers() if context.home else ()
        if not leaks or world.now >= max(started_at, nemesis.last_fault_ends_at) + REST_TIMEOUT_S:
            return leaks
