"""What is peculiar to some worlds: a client that stops reading, a request that crashes engines, a long standstill."""

import random
from dataclasses import replace

from penstock.faults.plan import LOAD, NONE, SECONDS, TIER_WEIGHTS, Act, Fault, Plan, Twist, plan_of

POISONED = 0.06  # of worlds, in which a request crashes engines
SLOW = 0.15  # of worlds, in which a client stops reading
LONG, SHORT = 28, 12  # tokens; what the buffers of such a world do not hold, and what they do
BUFFER = 72  # bytes that an edge of such a world keeps for one client


def plan(seed: int, twist: Twist = NONE) -> Plan:
    planned = replace(plan_of(seed), twist=twist)
    slow, poison = random.Random(f"{seed} slow"), random.Random(f"{seed} poison")
    if twist.longest_freeze:
        planned = with_freeze(planned, random.Random(f"{seed} freeze"), twist.longest_freeze)
    if poison.random() < POISONED or twist.poisoned:
        return with_poison(planned, poison)
    return with_slow_reader(planned, slow) if slow.random() < SLOW else planned


def with_slow_reader(planned: Plan, draw: random.Random) -> Plan:
    """Have one of the clients stop reading in the middle of its answer, and edges keep little for it.

    The answers of the others are so short that they cannot fall that far behind.
    """
    asks = [replace(ask, tokens=min(ask.tokens, SHORT)) for ask in planned.asks]
    place = draw.randrange(len(asks))
    asks[place] = replace(
        asks[place],
        tokens=LONG,
        ignore_eos=True,
        stops=(),
        leaves_at=None,
        leaves_after=None,
        timeout=None,
        in_session=False,
        stalls_at=draw.randint(1, 4),
        stalls_for=draw.choice((0.2, 2.0, 8.0)),
    )
    return replace(planned, asks=tuple(asks), shape=replace(planned.shape, client_buffer=BUFFER))


def with_poison(planned: Plan, draw: random.Random) -> Plan:
    """Have one of the requests crash engines, by its prompt or later; its client stays to hear of it."""
    asks = list(planned.asks)
    place = draw.randrange(len(asks))
    poison_at = draw.choice((0, 0, 3))
    asks[place] = replace(
        asks[place],
        tokens=max(asks[place].tokens, poison_at + 1),
        ignore_eos=True,
        stops=(),
        leaves_at=None,
        leaves_after=None,
        timeout=None,
        poison_at=poison_at,
    )
    return replace(planned, asks=tuple(asks))


def with_freeze(planned: Plan, draw: random.Random, longest: float) -> Plan:
    """Have all that stands still do so for longer than it would otherwise, and something stand still at all."""
    faults = planned.faults
    if not any(fault.act is Act.FREEZE for fault in faults):
        victim = draw.choices(list(TIER_WEIGHTS), list(TIER_WEIGHTS.values()))[0]
        at, pick = draw.uniform(0.0, LOAD), draw.random()
        faults = (Fault(act=Act.FREEZE, seconds=0.0, victim=victim, pick=pick, at=at), *faults[1:])
    _, shortest = SECONDS[Act.FREEZE]
    lasting = (
        replace(fault, seconds=draw.uniform(shortest, longest)) if fault.act is Act.FREEZE else fault
        for fault in faults
    )
    return replace(planned, faults=tuple(lasting))
