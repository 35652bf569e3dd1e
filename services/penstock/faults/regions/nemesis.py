"""Nemesis of worlds of several regions: kills whole regions, and cuts or slows down the links between them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations

from penstock.faults.grpc.network import Connection, Failpoint
from penstock.faults.nemesis import Nemesis
from penstock.faults.plan import FaultKind, PlannedFault
from penstock.faults.regions.border import BorderNetwork, Direction, region_of
from penstock.faults.world.stores.disk import Disk

REGION_FAULTS = frozenset({FaultKind.REGION_KILL, FaultKind.CUT, FaultKind.SLOW_LINK})


@dataclass
class RegionNemesis(Nemesis):
    """Injects faults of processes, of regions and of the links between regions."""

    border: BorderNetwork = field(kw_only=True)
    disks: Mapping[str, Disk] = field(kw_only=True)  # of auth, by region

    def _inject(self, fault: PlannedFault) -> None:
        if fault.kind in REGION_FAULTS:
            directions = [Direction(*each) for each in permutations(self.disks, 2)]
            self._strike(fault, directions[int(fault.victim_pick * len(directions))])
        else:
            super()._inject(fault)

    def _inject_at_frame(self, fault: PlannedFault, failpoint: Failpoint, connection: Connection) -> None:
        if fault.kind in REGION_FAULTS:
            sender, receiver = connection.loops[1 - failpoint.direction], connection.loops[failpoint.direction]
            self._strike(fault, Direction(region_of(sender), region_of(receiver)))
        else:
            super()._inject_at_frame(fault, failpoint, connection)

    def _strike(self, fault: PlannedFault, direction: Direction) -> None:
        """Inject a fault of a region, the receiver, or of the link from the sender to the receiver."""
        if fault.kind is FaultKind.REGION_KILL:
            self._kill_region(fault, direction.receiver)
            return
        directions = (direction,) if fault.is_one_way else (direction, Direction(*reversed(direction)))
        name = f"{direction.sender} {'to' if fault.is_one_way else 'and'} {direction.receiver}"
        delay = f", by {fault.added_delay_s:.3f} s" if fault.kind is FaultKind.SLOW_LINK else ""
        self._record(fault, name + delay, fault.duration_s)
        for each in directions:
            if fault.kind is FaultKind.CUT:
                self.border.cut(each, fault.duration_s)
            else:
                self.border.slow_down(each, fault.added_delay_s, fault.duration_s)

    def _kill_region(self, fault: PlannedFault, region: str) -> None:
        """Kill all processes of a region at once, and start each of them again."""
        victims = [each for each in self.tiers.processes.values() if each.name.startswith(f"{region}-") and each.is_up]
        self._record(fault, " ".join(each.name for each in victims), fault.duration_s)
        for victim in victims:
            self.stops_by_tier[victim.tier] += 1
            self.killed_tiers.add(victim.tier)
            victim.kill()
            self._restart_later(victim, fault.duration_s)

    def _fill_disk(self, fault: PlannedFault) -> None:
        self.disk = list(self.disks.values())[int(fault.victim_pick * len(self.disks))]
        super()._fill_disk(fault)
