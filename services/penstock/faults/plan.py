"""What a seed decides before anything runs: the mesh, what is asked of it, and what goes wrong."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.faults.checks import oracle
from penstock.faults.failpoints import BUSY, POINTS
from penstock.faults.grpc.network import Point
from penstock.faults.world.tiers import Shape

LOAD = 0.5  # s in which requests come, and faults as well
CALM = 0.08  # of worlds, in which nothing goes wrong, and nobody is excused
MAX_FAULTS = 3  # a request survives as many lost runs as the edges' bound on attempts lets it


class Act(StrEnum):
    KILL = "kill"  # and start again after a while
    TERM = "term"  # the same, but asked to
    CRASH = "crash"  # of an engine, by its own fault
    FREEZE = "freeze"  # and go on after a while
    CUT = "cut"  # one connection
    HOLE = "hole"  # let nothing through between two processes for a while
    DISK = "disk"  # full for a while


WEIGHTS = {Act.KILL: 5, Act.TERM: 2, Act.CRASH: 0.7, Act.FREEZE: 3, Act.CUT: 3, Act.HOLE: 2, Act.DISK: 0.5}
TIER_WEIGHTS = {"edge": 3, "auth": 2, "queue": 3, "scheduler": 3, "worker": 3, "engine": 2}
SECONDS = {
    Act.KILL: (0.01, 1.5),
    Act.TERM: (0.01, 0.5),
    Act.CRASH: (0.0, 0.0),
    Act.FREEZE: (0.05, 5.0),
    Act.CUT: (0.0, 0.0),
    Act.HOLE: (0.05, 4.0),
    Act.DISK: (0.05, 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong: at a moment, or with the nth frame of a kind that leaves its sender."""

    act: Act
    seconds: float  # how long it lasts
    victim: str  # a tier; at a point the peer that is of this tier, or else the sender
    pick: float  # which of several, in [0, 1)
    at: float = 0.0  # s from the first request
    point: Point | None = None
    nth: int = 1

    def __str__(self) -> str:
        when = f"at frame {self.nth} of {self.point}" if self.point else f"at {self.at:.4f} s"
        return f"{self.act} {self.victim} for {self.seconds:.3f} s {when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One client's request. Prompts of one world differ in length, which is how its charges are told apart."""

    at: float  # s from the beginning of the load
    prompt: tuple[int, ...]
    tokens: int
    seed: int | None  # None: greedy, and the edge draws one
    ignore_eos: bool
    stops: tuple[str, ...] = ()
    leaves_at: int | None = None  # tokens, after which the client leaves
    leaves_after: float | None = None  # s
    timeout: float | None = None  # s
    in_session: bool = False
    is_text: bool = False
    priority: int = 2
    logprobs: bool = False
    stalls_at: int | None = None  # tokens, after which the client does not read for a while
    stalls_for: float = 0.0  # s
    poison_at: int | None = None  # the token that no engine computes and lives

    @property
    def is_whole(self) -> bool:
        """Whether its client stays for the end."""
        return self.leaves_at is None and self.leaves_after is None and self.timeout is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A question for the size of a text, which needs to know who asks and the model, and no worker."""

    at: float  # s from the beginning of the load
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Twist:
    """What somebody wants of every world beside what its seed says."""

    poisoned: bool = False  # a request crashes engines
    longest_freeze: float = 0.0  # s; above 0 a process stands still, for longer than it would otherwise and up to this

    def __str__(self) -> str:
        """As options of the command that makes such worlds."""
        frozen = f" --longest-freeze {self.longest_freeze:g}" if self.longest_freeze else ""
        return f"{' --poison' if self.poisoned else ''}{frozen}"


NONE = Twist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    shape: Shape
    asks: tuple[Ask, ...]
    counts: tuple[Count, ...]
    faults: tuple[Fault, ...]
    roughness: float  # share of frames that come late
    twist: Twist = NONE


def plan_of(seed: int) -> Plan:
    draw = random.Random(f"{seed} plan")
    shape = _shape(draw)
    asks = _asks(draw)
    roughness = draw.choice((0.0, 0.02, 0.2))
    count = 0 if draw.random() < CALM else draw.randint(1, MAX_FAULTS)
    broken = tuple(_fault(draw) for _ in range(count))
    counts = _counts(random.Random(f"{seed} counts"))
    return Plan(seed=seed, shape=shape, asks=asks, counts=counts, faults=broken, roughness=roughness)


def _shape(draw: random.Random) -> Shape:
    return Shape(
        edges=draw.choice((1, 2)),
        queues=draw.choice((1, 2)),
        schedulers=draw.choice((1, 2)),
        workers=draw.choice((1, 2, 2, 3)),
        slots=draw.choice((1, 2, 4)),
        kv_blocks=draw.choice((16, 24, 48)),
        block_size=draw.choice((4, 8)),
        token_budget=draw.choice((8, 24, 64)),
    )


def _asks(draw: random.Random) -> tuple[Ask, ...]:
    lengths = draw.sample(range(3, 36), draw.randint(2, 6))
    return tuple(_ask(draw, length) for length in lengths)


def _ask(draw: random.Random, length: int) -> Ask:
    variant, tokens = draw.choice((1, 1, 5)), draw.randint(1, 24)
    prompt = tuple((place * 7 + variant) % 26 for place in range(length))
    seed = draw.getrandbits(64) if draw.random() < 0.5 else None
    ignore_eos = draw.random() < 0.6
    ending = draw.random()
    return Ask(
        at=draw.uniform(0.0, LOAD),
        prompt=prompt,
        tokens=tokens,
        seed=seed,
        ignore_eos=ignore_eos,
        stops=_stops(draw, prompt, seed, tokens),
        leaves_at=draw.randint(0, tokens) if ending < 0.12 else None,
        leaves_after=draw.uniform(0.0, draw.choice((0.005, 0.4))) if 0.12 <= ending < 0.24 else None,
        timeout=draw.uniform(0.01, 0.6) if 0.24 <= ending < 0.3 else None,
        in_session=draw.random() < 0.4,
        is_text=draw.random() < 0.3,
        priority=draw.choice((1, 2, 3)),
        logprobs=draw.random() < 0.2,
    )


def _stops(draw: random.Random, prompt: Sequence[int], seed: int | None, tokens: int) -> tuple[str, ...]:
    """A string that the answer will come to, half of the time; it takes a known seed to know one."""
    if seed is None or draw.random() < 0.5:
        return ()
    text = oracle.owed(prompt, seed, tokens, ignore_eos=True, stops=()).text
    start = draw.randrange(max(1, len(text)))
    found = text[start : start + draw.randint(1, 3)]
    return (found,) if found.isascii() and found else ()


def _counts(draw: random.Random) -> tuple[Count, ...]:
    how_many = draw.choice((0, 0, 1, 2))
    return tuple(Count(at=draw.uniform(0.0, LOAD), prompt=(3,) * draw.randint(1, 20)) for _ in range(how_many))


def _fault(draw: random.Random) -> Fault:
    act = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    victim = draw.choices(list(TIER_WEIGHTS), list(TIER_WEIGHTS.values()))[0]
    if act is Act.CRASH:
        victim = "engine"
    elif victim == "engine" and act not in (Act.KILL, Act.FREEZE):
        victim = "worker"
    places = BUSY if draw.random() < 0.85 else POINTS
    point = draw.choice(places) if draw.random() < 0.7 and act is not Act.DISK and victim != "engine" else None
    return Fault(
        act=act,
        seconds=draw.uniform(*SECONDS[act]),
        victim=victim,
        pick=draw.random(),
        at=draw.uniform(0.0, LOAD),
        point=point,
        nth=draw.choice((1, 1, 2, 3)),
    )
