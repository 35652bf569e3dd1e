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

from penstock.faults.checks.allowed_failures import excuses
from penstock.faults.checks.checker import (
    Row,
    Violation,
    judge_answers,
    judge_charges,
    judge_counts,
    judge_poison,
    judge_residue,
    judge_totals,
    judge_waste,
)
from penstock.faults.checks.invariants import Monitor
from penstock.faults.checks.leak_check import absent, crashes, figures, open_calls
from penstock.faults.grpc.network import DELAY, LATE, Network, Point
from penstock.faults.mutations import plan
from penstock.faults.nemesis import CLIENT, Nemesis
from penstock.faults.plan import NONE, Ask, Plan, Twist
from penstock.faults.world.clients import Counted, Seen, run_clients
from penstock.faults.world.disk import Disk
from penstock.faults.world.engines import EngineStand
from penstock.faults.world.environment import silent, staged
from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.slow_readers import READER, READER_WINDOW, Watch
from penstock.faults.world.tiers import KEY, Tiers
from penstock.faults.world.world import Livelock, World

BOOT = 0.4  # s before the first request
PATIENCE = 45.0  # s; a request that takes longer after the last fault never ends
REST = 25.0  # s until nothing is left over
LOOK = 0.25  # s between looks
PROBE_PROMPT = 40  # tokens of the first probe; above every other prompt
PROBE_PATIENCE = 10.0  # s
COLLECT_EVERY = 8  # worlds
STEP = 0.02  # s; longer than any step of such an engine

_LEDGER = """
    SELECT reservation_id, request_id, reserved_prompt_tokens, reserved_output_tokens, prompt_tokens, output_tokens,
           outcome, answer_id FROM ledger ORDER BY settled_at, reservation_id
"""
_TOTALS = "SELECT SUM(prompt_tokens), SUM(output_tokens), SUM(requests) FROM balances"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one seed."""

    plan: Plan
    violations: tuple[Violation, ...]
    happened: tuple[str, ...]  # faults that went off
    points: Mapping[Point, int]  # frames that left, by kind
    trace: int  # the same for the same seed under the same hash seed
    turns: int
    seconds: float  # that passed in the world
    requests: int


@dataclass
class Stand:
    """One world with all that is in it."""

    plan: Plan
    world: World = field(init=False)
    network: Network = field(init=False)
    disk: Disk = field(init=False)
    engines: EngineStand = field(init=False)
    tiers: Tiers = field(init=False)
    monitor: Monitor = field(init=False)
    nemesis: Nemesis = field(init=False)
    watch: Watch = field(init=False)
    clients: list[ProcessLoop] = field(default_factory=list)

    def __post_init__(self) -> None:
        seed = self.plan.seed
        self.world = World(seed)
        self.network = Network(self.world, seed, roughness=self.plan.roughness)
        self.disk = Disk(seed)
        self.engines = EngineStand(self.network)
        self.tiers = Tiers(self.network, self.plan.shape, self.engines)
        asks = [*self.plan.asks, *_probes(self.plan)]
        self.engines.poison = {len(ask.prompt): ask.poison_at for ask in self.plan.asks if ask.poison_at is not None}
        self.monitor = Monitor({len(each.prompt): each for each in asks})
        self.network.hear = self.monitor.hear
        self.nemesis = Nemesis(self.tiers, self.disk, self.plan.faults, random.Random(f"{seed} nemesis"))
        self.network.windows[READER] = READER_WINDOW
        self.watch = Watch(self.nemesis, sum(_is_slow(ask) for ask in self.plan.asks))


def run_seed(seed: int, twist: Twist = NONE, *, story: list[str] | None = None) -> Outcome:
    """`story` gets a line for each frame that leaves, but for heartbeats."""
    return run_plan(plan(seed, twist), story=story)


def run_plan(planned: Plan, *, story: list[str] | None = None) -> Outcome:
    with _forgotten():
        return _run_staged(planned, story)


def _run_staged(planned: Plan, story: list[str] | None) -> Outcome:
    stand = Stand(planned)
    stand.network.story = story
    with staged(stand.network, stand.disk, stand.engines, planned.seed):
        try:
            return _run(stand)
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001  # the world has set it
            sys.set_asyncgen_hooks(None, None)


def _run(stand: Stand) -> Outcome:
    try:
        requests, violations = _play(stand)
    except Livelock as livelock:
        requests, violations = len(stand.plan.asks), (Violation("livelock", str(livelock)),)
    return Outcome(
        plan=stand.plan,
        violations=violations,
        happened=tuple(stand.nemesis.happened),
        points=stand.network.seen,
        trace=stand.network.trace,
        turns=stand.world.turns,
        seconds=stand.world.now,
        requests=requests,
    )


def _play(stand: Stand) -> tuple[int, tuple[Violation, ...]]:
    """Return how many requests there were, and what was wrong."""
    world, nemesis = stand.world, stand.nemesis
    stand.tiers.start()
    world.run(lambda: False, limit=BOOT)
    seen = [Seen(ask=ask) for ask in stand.plan.asks]
    counted = [Counted(ask=each) for each in stand.plan.counts]
    nemesis.begin()
    stand.watch.begin()
    _ask(stand, seen, PATIENCE, counted)
    nemesis.rest()
    leaks = _come_to_rest(stand)
    probes = [Seen(ask=each) for each in _probes(stand.plan)]
    _ask(stand, probes, PROBE_PATIENCE)
    leaks += _come_to_rest(stand)
    rows = [Row(*row) for row in stand.disk.connection.execute(_LEDGER)]
    everything = [*seen, *probes]
    totals = stand.disk.connection.execute(_TOTALS).fetchone()
    excused = excuses(lambda tier: [each.absent_until(world.now) for each in stand.tiers.of(tier)], nemesis.touched)
    violations = chain(
        judge_answers(everything, excused),
        judge_counts(counted, excused),
        judge_charges(
            everything,
            rows,
            stand.engines.made,
            last=stand.monitor.last if "edge" in nemesis.killed else {},
            has_lost_some="edge" in nemesis.stopped and "auth" in nemesis.touched,
        ),
        judge_totals(rows, totals),
        ()
        if nemesis.happened or stand.engines.poisoned
        else judge_waste(seen, stand.engines.made_at, _cancel_bound(stand.plan)),
        stand.monitor.found,
        stand.watch.found.values(),
        judge_poison(seen, stand.engines.poisoned, nemesis.stopped["worker"], excused),
        leaks,
        crashes(stand.tiers),
    )
    return len(everything), tuple(violations)


def _ask(stand: Stand, seen: Sequence[Seen], patience: float, counted: Sequence[Counted] = ()) -> None:
    """Have clients send what is to be asked, until all is over or one takes too long after the last fault."""
    world, nemesis = stand.world, stand.nemesis
    slow = [each for each in seen if _is_slow(each.ask)]
    others = [each for each in seen if not _is_slow(each.ask)]
    asked = [_clients(stand, CLIENT, others, counted), *([_clients(stand, READER, slow)] if slow else ())]

    def is_over() -> bool:
        return all(each.done() for each in asked)

    began = world.now
    while not is_over() and world.now < (limit := max(began, nemesis.until) + patience):  # what strikes moves it
        world.run(is_over, limit=limit)


def _clients(stand: Stand, name: str, seen: Sequence[Seen], counted: Sequence[Counted] = ()) -> asyncio.Task[None]:
    """A process of clients."""
    loop = stand.world.add_loop(name)
    stand.clients.append(loop)
    with stand.world.inside(loop):
        return loop.create_task(run_clients(stand.plan.shape.addresses("edge"), KEY, seen, counted))


def _is_slow(ask: Ask) -> bool:
    return ask.stalls_at is not None


def _come_to_rest(stand: Stand) -> list[Violation]:
    """Wait until nothing is left over; what is, when it takes too long."""
    world, began = stand.world, stand.world.now
    while True:
        world.run(lambda: False, limit=world.now + LOOK)
        world.settle()
        found = [*judge_residue(figures(stand.tiers)), *open_calls(stand.tiers)]
        found += absent(stand.tiers, stand.nemesis.until)
        if not found or world.now >= max(began, stand.nemesis.until) + REST:  # what strikes yet moves it
            return found


def _cancel_bound(planned: Plan) -> float:
    """Seconds from a client's leaving to the last step that may count it in: three ways, and the step under way."""
    return 3 * (LATE if planned.roughness else DELAY)[1] + STEP


def _probes(planned: Plan) -> Iterator[Ask]:
    """As many short requests as all workers have slots: each slot must be there again."""
    shape = planned.shape
    for number in range(shape.slots * shape.workers):
        prompt = tuple(place % 26 for place in range(PROBE_PROMPT + number))
        yield Ask(at=0.0, prompt=prompt, tokens=3, seed=number, ignore_eos=True)


@contextmanager
def _forgotten() -> Iterator[None]:
    """What the world's processes had under way at its end is dropped unheard; the collector comes once in a while."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with silent(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that never began
            yield
            if next(_worlds) % COLLECT_EVERY == 0:
                gc.collect()
    finally:
        sys.unraisablehook = hook


def forget() -> None:
    """Let go of what is left of the last worlds: processes that crashed are coroutines that nobody can end."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with silent(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            gc.collect()
    finally:
        sys.unraisablehook = hook


@atexit.register
def _forget_last() -> None:
    forget()
    sys.unraisablehook = lambda _: None


_worlds = itertools.count(1)
