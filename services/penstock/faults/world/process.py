"""A simulated process of the mesh, which can be started, killed, frozen and stopped; each start has its own loop."""

import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from penstock.chassis.lifecycle import request_stop
from penstock.chassis.security.identity import START_SEPARATOR
from penstock.faults.checks.allowed_failures import Interval
from penstock.faults.grpc.network import Network
from penstock.faults.world.event_loop import ProcessLoop

Main = Callable[[str], Coroutine[Any, Any, None]]  # instance id -> main coroutine


@dataclass(eq=False)
class Process:
    """One process; `main` is its composition root, which takes the instance id."""

    name: str
    tier: str
    address: str
    main: Main
    network: Network
    start_count: int = 0
    started_at: float = 0.0  # s
    loop: ProcessLoop | None = None  # None: the process is down
    children: "list[Process]" = field(default_factory=list)  # killed with this process
    is_frozen: bool = False
    crashes: list[BaseException] = field(default_factory=list)
    past_loops: list[ProcessLoop] = field(default_factory=list)  # loops of earlier starts
    down_since: float = math.inf  # s; infinite: the process is up
    downtimes: list[Interval] = field(default_factory=list)  # ended ones

    def __repr__(self) -> str:
        return f"<Process {self.name}, {self.start_count} starts, {'up' if self.loop else 'down'}>"

    @property
    def is_up(self) -> bool:
        return self.loop is not None

    def start(self) -> None:
        if self.loop is not None:
            return
        self.start_count += 1
        self._mark_up()
        self.started_at = self.network.world.now
        loop = self.loop = self.network.world.add_loop(self.name)
        with self.network.world.running_as(loop):
            main_task = loop.create_task(self.main(f"{self.name}{START_SEPARATOR}{self.start_count}"), name=self.name)
        main_task.add_done_callback(lambda _: self._on_main_ended(loop, main_task))

    def kill(self) -> None:
        """Stop the process at once, as SIGKILL does; its connections are closed."""
        loop, self.loop, self.is_frozen = self.loop, None, False
        if loop is None:
            return
        world = self.network.world
        self._mark_down()
        world.halt(loop)
        world.loops.remove(loop)
        self.past_loops.append(loop)
        self.network.on_process_died(loop)
        for child in self.children:
            child.kill()

    def stop(self) -> None:
        """Ask the process to stop, as SIGTERM does."""
        if self.loop is not None:
            with self.network.world.running_as(self.loop):
                request_stop("SIGTERM")

    def freeze(self, duration_s: float) -> None:
        """Suspend the process for `duration_s` seconds, as SIGSTOP and SIGCONT do."""
        loop = self.loop
        if loop is None or self.is_frozen:
            return
        self.is_frozen = True
        self._mark_down()
        self.network.world.halt(loop)
        self.network.on_process_frozen(loop, duration_s)
        self.network.world.schedule(self.network.world.now + duration_s, self._resume, loop)

    def _resume(self, loop: ProcessLoop) -> None:
        if self.loop is loop:
            self.is_frozen = False
            self._mark_up()
            self.network.world.resume(loop)

    def downtimes_until(self, now: float) -> list[Interval]:
        """Return when the process or one of its children was dead or frozen."""
        own = [*self.downtimes, *([Interval(self.down_since, now)] if self.down_since < now else ())]
        return [*own, *(interval for child in self.children for interval in child.downtimes_until(now))]

    def _mark_down(self) -> None:
        self.down_since = min(self.down_since, self.network.world.now)

    def _mark_up(self) -> None:
        if self.down_since < math.inf:
            self.downtimes.append(Interval(self.down_since, self.network.world.now))
        self.down_since = math.inf

    def _on_main_ended(self, loop: ProcessLoop, main_task: Any) -> None:
        if self.loop is not loop:
            return
        if not main_task.cancelled() and main_task.exception():
            self.crashes.append(main_task.exception())
        self.kill()
