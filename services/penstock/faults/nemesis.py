"""Does what the plan says goes wrong, when it says so."""

import random
from collections import Counter
from dataclasses import dataclass, field

from penstock.faults.checks.allowed_failures import Span
from penstock.faults.grpc.network import Connection, Point
from penstock.faults.plan import Act, Fault
from penstock.faults.world.disk import Disk
from penstock.faults.world.engines import LOAD, EngineProcess
from penstock.faults.world.process import Process
from penstock.faults.world.tiers import Tiers

CLIENT = "client"


@dataclass
class Nemesis:
    """`until` is when the last fault is over, as far as any has happened."""

    tiers: Tiers
    disk: Disk
    faults: tuple[Fault, ...]
    draw: random.Random
    happened: list[str] = field(default_factory=list)
    until: float = 0.0  # s
    touched: dict[str, list[Span]] = field(default_factory=dict)  # when a process or link of a tier was harmed
    killed: set[str] = field(default_factory=set)  # tiers of which a process was, without being asked first
    stopped: Counter[str] = field(default_factory=Counter)  # processes that ended or froze, by tier; links do neither
    _armed: list[Fault] = field(default_factory=list)
    _counts: dict[Point, int] = field(default_factory=dict)

    def begin(self) -> None:
        """The load begins."""
        world = self.tiers.network.world
        self.until = world.now
        self._armed = [each for each in self.faults if each.point]
        for fault in self.faults:
            if not fault.point:
                world.at(world.now + fault.at, self._strike, fault)
        self.tiers.network.watch = self._watch

    def rest(self) -> None:
        """Nothing new goes wrong from here on."""
        self._armed = []

    def _watch(self, point: Point, connection: Connection) -> None:
        if not self._armed:
            return
        count = self._counts[point] = self._counts.get(point, 0) + 1
        for fault in [each for each in self._armed if each.point == point and each.nth == count]:
            self._armed.remove(fault)
            self._strike_at(fault, point, connection)

    def _strike(self, fault: Fault) -> None:
        if fault.act is Act.DISK:
            self._fill_disk(fault)
        elif fault.act in (Act.CUT, Act.HOLE):
            if connections := self.tiers.network.connections:
                self._part(fault, connections[int(fault.pick * len(connections))])
        else:
            found = [each for each in self.tiers.of(fault.victim) if each.is_up]
            if found:
                self._harm(fault, found[int(fault.pick * len(found))])

    def _strike_at(self, fault: Fault, point: Point, connection: Connection) -> None:
        if fault.act in (Act.CUT, Act.HOLE):
            self._part(fault, connection)
            return
        sender = connection.loops[1 - point.way].name
        names = sorted((loop.name for loop in connection.loops), key=lambda name: name != sender)
        peers = [self.tiers.processes[name] for name in names if name in self.tiers.processes]
        if peers:
            self._harm(fault, next((each for each in peers if each.tier == fault.victim), peers[0]))

    def _harm(self, fault: Fault, victim: Process) -> None:
        world = self.tiers.network.world
        if victim.tier == "engine" and world.now < victim.started_at + 2 * LOAD:
            return  # one that dies before it was ever ready ends its worker, for somebody else to start again
        self._note(fault, victim.name, fault.seconds)
        self.stopped[victim.tier] += 1
        match fault.act:
            case Act.KILL:
                self.killed.add(victim.tier)
                victim.kill()
                self._start_later(victim, fault.seconds)
            case Act.CRASH if isinstance(victim, EngineProcess):
                victim.crash()
            case Act.TERM:
                victim.stop()
                world.at(world.now + fault.seconds, self._start_again, victim, fault.seconds)
            case Act.FREEZE:
                victim.freeze(fault.seconds)

    def _start_later(self, victim: Process, seconds: float) -> None:
        if victim.tier != "engine":  # its worker starts another
            world = self.tiers.network.world
            world.at(world.now + seconds, victim.start)

    def _start_again(self, victim: Process, seconds: float) -> None:
        """Start what was asked to end, once it has ended."""
        world = self.tiers.network.world
        if victim.is_up:
            world.at(world.now + seconds, self._start_again, victim, seconds)
        else:
            victim.start()

    def _part(self, fault: Fault, connection: Connection) -> None:
        self._note(fault, " and ".join(sorted(connection.names)), fault.seconds)
        if fault.act is Act.CUT:
            self.tiers.network.cut(connection)
        else:
            self.tiers.network.open_hole(connection.names, fault.seconds)

    def _fill_disk(self, fault: Fault) -> None:
        world = self.tiers.network.world
        self._note(fault, "disk", fault.seconds)
        self.disk.is_full = True
        world.at(world.now + fault.seconds, self._empty_disk)

    def _empty_disk(self) -> None:
        self.disk.is_full = False

    def _note(self, fault: Fault, whom: str, seconds: float) -> None:
        now = self.tiers.network.world.now
        harmed = {each.tier for each in self.tiers.processes.values() if each.name in whom} or {whom}
        for tier in harmed:
            self.touched.setdefault(tier, []).append(Span(now, now + seconds))
        self.until = max(self.until, now + seconds)
        self.happened.append(f"{now:.6f} {fault.act} {whom} for {seconds:.3f} s")
        self.tiers.network.tell(self.happened[-1])
