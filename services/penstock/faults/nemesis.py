"""Nemesis: injects the planned faults into processes, links, disks and the database of batches."""

import random
from collections import Counter
from dataclasses import dataclass, field

from penstock.faults.checks.allowed_failures import Interval
from penstock.faults.checks.auth_absence import Absence
from penstock.faults.grpc.network import Connection, Failpoint
from penstock.faults.plan import FaultKind, PlannedClockStep, PlannedFault, PlannedReplacement
from penstock.faults.world.engines import LOAD_TIME_S, FakeEngineProcess
from penstock.faults.world.process import Process
from penstock.faults.world.stores.batch_disk import BatchDisk
from penstock.faults.world.stores.disk import Disk
from penstock.faults.world.tiers import Tiers

CLIENT_PROCESS = "client"
AUTH_DRAIN_S = 4.0  # s that a stopped replica of auth may take to give its partitions and to end
ONE_AWAY_SHARE = 0.5  # share of `STORE_AWAY` in which one process cannot reach the database, and others can
BATCH_STORE = "batchstore"  # the name of the disk and the database of batches, as a victim
REPLACEMENT_S = 0.05  # s until a replaced worker starts, or until the end of its drain is checked


@dataclass
class Nemesis:
    """Injects each planned fault at its time or at its failpoint, and records the injected ones."""

    tiers: Tiers
    disk: Disk
    batch_disk: BatchDisk
    faults: tuple[PlannedFault, ...]
    rng: random.Random
    clock_steps: tuple[PlannedClockStep, ...] = ()
    replacements: tuple[PlannedReplacement, ...] = ()
    injected: list[str] = field(default_factory=list)
    injected_kinds: set[FaultKind] = field(default_factory=set)
    last_fault_ends_at: float = 0.0  # s; end of the last fault among those injected
    # When a process or a link of a tier, or the disk, was faulty.
    disturbed: dict[str, list[Interval]] = field(default_factory=dict)
    auth_absences: dict[str, list[Absence]] = field(default_factory=dict)  # by name of the replica
    killed_tiers: set[str] = field(default_factory=set)  # tiers of which a process was killed
    # Processes that ended or were frozen, by tier.
    stops_by_tier: Counter[str] = field(default_factory=Counter)
    _armed: list[PlannedFault] = field(default_factory=list)
    _counts: dict[Failpoint, int] = field(default_factory=dict)

    def start(self) -> None:
        """Schedule the timed faults and arm the others, as the load begins."""
        world = self.tiers.network.world
        self.last_fault_ends_at = world.now
        self._armed = [each for each in self.faults if each.failpoint]
        for fault in self.faults:
            if not fault.failpoint:
                world.schedule(world.now + fault.at, self._inject, fault)
        for step in self.clock_steps:
            world.schedule(world.now + step.at, self._step_clock, step)
        for replacement in self.replacements:
            world.schedule(world.now + replacement.at, self._replace_worker, replacement)
        self.tiers.network.on_failpoint = self._on_frame

    def stop(self) -> None:
        """Disarm the faults that wait for a frame."""
        self._armed = []

    def _step_clock(self, step: PlannedClockStep) -> None:
        hosts = [each.name for each in self.tiers.of(step.tier)]
        self.tiers.network.world.clocks[hosts[int(step.pick * len(hosts))]].step(step.seconds)

    def _replace_worker(self, replacement: PlannedReplacement) -> None:
        """Replace the files of the model, which the next engine loads, and then the worker."""
        name = self.tiers.shape.names("worker")[replacement.worker]
        self.tiers.engine_pool.set_version(name, replacement.version)
        kind = FaultKind.KILL if replacement.is_killed else FaultKind.TERM
        fault = PlannedFault(kind=kind, duration_s=REPLACEMENT_S, victim_tier="worker", victim_pick=0.0)
        if self.tiers.processes[name].is_up:
            self._disrupt_process(fault, self.tiers.processes[name])

    def _on_frame(self, failpoint: Failpoint, connection: Connection) -> None:
        if not self._armed:
            return
        count = self._counts[failpoint] = self._counts.get(failpoint, 0) + 1
        for fault in [each for each in self._armed if each.failpoint == failpoint and each.frame_number == count]:
            self._armed.remove(fault)
            self._inject_at_frame(fault, failpoint, connection)

    def _inject(self, fault: PlannedFault) -> None:
        if fault.kind is FaultKind.DISK_FULL:
            self._fill_disk(fault)
        elif fault.kind is FaultKind.STORE_AWAY:
            self._cut_off_store(fault)
        elif fault.kind in (FaultKind.RESET, FaultKind.PARTITION):
            if connections := self.tiers.network.connections:
                self._disrupt_link(fault, connections[int(fault.victim_pick * len(connections))])
        else:
            victims = [each for each in self.tiers.of(fault.victim_tier) if each.is_up]
            if victims:
                self._disrupt_process(fault, victims[int(fault.victim_pick * len(victims))])

    def _inject_at_frame(self, fault: PlannedFault, failpoint: Failpoint, connection: Connection) -> None:
        if fault.kind in (FaultKind.RESET, FaultKind.PARTITION):
            self._disrupt_link(fault, connection)
            return
        if fault.kind in (FaultKind.DISK_FULL, FaultKind.STORE_AWAY):
            self._inject(fault)
            return
        sender = connection.loops[1 - failpoint.direction].name
        names = sorted((loop.name for loop in connection.loops), key=lambda name: name != sender)
        peers = [self.tiers.processes[name] for name in names if name in self.tiers.processes]
        if peers:
            self._disrupt_process(fault, next((each for each in peers if each.tier == fault.victim_tier), peers[0]))

    def _disrupt_process(self, fault: PlannedFault, victim: Process) -> None:
        world = self.tiers.network.world
        if victim.tier == "engine" and world.now < victim.started_at + 2 * LOAD_TIME_S:
            return  # the worker exits if its engine dies before it was ready, and no supervisor runs here to restart it
        self._record(fault, victim.name, fault.duration_s)
        self.stops_by_tier[victim.tier] += 1
        match fault.kind:
            case FaultKind.KILL:
                self.killed_tiers.add(victim.tier)
                victim.kill()
                self._restart_later(victim, fault.duration_s)
            case FaultKind.CRASH if isinstance(victim, FakeEngineProcess):
                victim.crash()
            case FaultKind.TERM:
                victim.stop()
                world.schedule(world.now + fault.duration_s, self._restart_when_ended, victim, fault.duration_s)
            case FaultKind.FREEZE:
                victim.freeze(fault.duration_s)

    def _restart_later(self, victim: Process, seconds: float) -> None:
        if victim.tier != "engine":  # its worker restarts an engine
            world = self.tiers.network.world
            world.schedule(world.now + seconds, victim.start)

    def _restart_when_ended(self, victim: Process, seconds: float) -> None:
        """Start the stopped process again once it has ended; poll every `seconds` until then."""
        world = self.tiers.network.world
        if victim.is_up:
            world.schedule(world.now + seconds, self._restart_when_ended, victim, seconds)
        else:
            victim.start()

    def _disrupt_link(self, fault: PlannedFault, connection: Connection) -> None:
        self._record(fault, " and ".join(sorted(connection.names)), fault.duration_s)
        if fault.kind is FaultKind.RESET:
            self.tiers.network.reset(connection)
        else:
            self.tiers.network.partition(connection.names, fault.duration_s)

    def _fill_disk(self, fault: PlannedFault) -> None:
        world, is_of_batches = self.tiers.network.world, fault.victim_tier == "batch"
        disk = self.batch_disk if is_of_batches else self.disk
        self._record(fault, BATCH_STORE if is_of_batches else "disk", fault.duration_s)
        disk.is_full = True
        world.schedule(world.now + fault.duration_s, self._free_disk, disk)

    def _free_disk(self, disk: Disk | BatchDisk) -> None:
        disk.is_full = False

    def _cut_off_store(self, fault: PlannedFault) -> None:
        world, names = self.tiers.network.world, [each.name for each in self.tiers.of("batch")]
        if fault.victim_pick < ONE_AWAY_SHARE:
            names = [names[int(fault.victim_pick / ONE_AWAY_SHARE * len(names))]]
        self._record(fault, f"{BATCH_STORE} of {' and '.join(names)}", fault.duration_s)
        self.batch_disk.away_from.update(names)
        world.schedule(world.now + fault.duration_s, self.batch_disk.away_from.difference_update, names)

    def _record(self, fault: PlannedFault, victim: str, seconds: float) -> None:
        now = self.tiers.network.world.now
        tiers = {each.tier for each in self.tiers.processes.values() if each.name in victim} or {victim}
        for each in self.tiers.of("auth"):
            if each.name in victim:
                is_link = fault.kind in (FaultKind.RESET, FaultKind.PARTITION)
                ends_at = now + seconds + (AUTH_DRAIN_S if fault.kind is FaultKind.TERM else 0.0)
                self.auth_absences.setdefault(each.name, []).append(Absence(now, ends_at, is_link))
        for tier in tiers:
            self.disturbed.setdefault(tier, []).append(Interval(now, now + seconds))
        self.last_fault_ends_at = max(self.last_fault_ends_at, now + seconds)
        self.injected_kinds.add(fault.kind)
        self.injected.append(f"{now:.6f} {fault.kind} {victim} for {seconds:.3f} s")
        self.tiers.network.log(self.injected[-1])
