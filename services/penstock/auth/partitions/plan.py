"""The plan of one replica: which partitions it takes and which it gives, so that all replicas own as many each."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

FREE = ""  # owner of a partition that nobody serves
RESERVED = "*"  # owner of a partition that is being given, and is nobody's for the plan
MAX_GIVEN = 8  # partitions that a replica gives at once, so that each is without an owner for a short time only


class Plan(NamedTuple):
    """What a replica does next."""

    take: tuple[int, ...] = ()
    give: tuple[int, ...] = ()
    awaits: bool = False  # whether partitions that others own now will be this replica's


def plan_partitions(me: str, members: Collection[str], owners: Mapping[int, str]) -> Plan:
    """Return the plan of the replica `me`.

    `members` are the replicas that take partitions: alive and not draining. `owners` has the owner of each partition,
    `FREE` if it serves no more. Replicas that see the same state have plans that fit together. If they see different
    ones, a partition moves once more than needed, and the epochs decide who owns it.
    """
    held = Counter(owner for owner in owners.values() if owner in members)
    if me not in members:
        mine = [partition for partition, owner in sorted(owners.items()) if owner == me]
        return Plan(give=tuple(mine[:MAX_GIVEN]) if members else ())
    targets = _targets(members, held, len(owners))
    free = sorted(partition for partition, owner in owners.items() if owner == FREE)
    take: list[int] = []
    for member in sorted(members):
        lacking = max(0, targets[member] - held[member])
        if member == me:
            take = free[:lacking]
        free = free[lacking:]
    excess = max(0, held[me] - targets[me])
    mine = sorted(partition for partition, owner in owners.items() if owner == me)
    give = mine[len(mine) - min(excess, MAX_GIVEN) :] if excess else []
    return Plan(tuple(take), tuple(give), held[me] + len(take) < targets[me])


def _targets(members: Collection[str], held: Counter[str], partitions: int) -> dict[str, int]:
    """Return the number of partitions of each member. Those that hold more keep the odd ones, so that fewer move."""
    share, odd = divmod(partitions, len(members))
    ranked = sorted(members, key=lambda member: (-held[member], member))
    return {member: share + (rank < odd) for rank, member in enumerate(ranked)}
