"""A process of the mesh: started, killed, frozen, asked to stop; each start is a loop of its own."""

import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from penstock.chassis.lifecycle import request_stop
from penstock.faults.checks.allowed_failures import Span
from penstock.faults.grpc.network import Network
from penstock.faults.world.event_loop import ProcessLoop

Main = Callable[[str], Coroutine[Any, Any, None]]  # takes the instance id


@dataclass(eq=False)
class Process:
    """`main` is what the process runs, from its configuration to its end."""

    name: str
    tier: str
    address: str
    main: Main
    network: Network
    starts: int = 0
    started_at: float = 0.0  # s
    loop: ProcessLoop | None = None  # None: it does not run
    children: "list[Process]" = field(default_factory=list)  # that die with it
    is_frozen: bool = False
    crashes: list[BaseException] = field(default_factory=list)
    past: list[ProcessLoop] = field(default_factory=list)  # loops of starts before this one
    away_since: float = math.inf  # s; infinite: it runs
    absences: list[Span] = field(default_factory=list)  # that are over

    def __repr__(self) -> str:
        return f"<Process {self.name}, {self.starts} starts, {'up' if self.loop else 'down'}>"

    @property
    def is_up(self) -> bool:
        return self.loop is not None

    def start(self) -> None:
        if self.loop is not None:
            return
        self.starts += 1
        self._returned()
        self.started_at = self.network.world.now
        loop = self.loop = self.network.world.add_loop(self.name)
        with self.network.world.inside(loop):
            whole = loop.create_task(self.main(f"{self.name}-{self.starts}"), name=self.name)
        whole.add_done_callback(lambda _: self._ended(loop, whole))

    def kill(self) -> None:
        """As SIGKILL: nothing of it runs any more, and what it had open is closed."""
        loop, self.loop, self.is_frozen = self.loop, None, False
        if loop is None:
            return
        world = self.network.world
        self._left()
        world.halt(loop)
        world.loops.remove(loop)
        self.past.append(loop)
        self.network.died(loop)
        for child in self.children:
            child.kill()

    def stop(self) -> None:
        """As SIGTERM."""
        if self.loop is not None:
            with self.network.world.inside(self.loop):
                request_stop("SIGTERM")

    def freeze(self, seconds: float) -> None:
        """As SIGSTOP, and SIGCONT after `seconds`."""
        loop = self.loop
        if loop is None or self.is_frozen:
            return
        self.is_frozen = True
        self._left()
        self.network.world.halt(loop)
        self.network.froze(loop, seconds)
        self.network.world.at(self.network.world.now + seconds, self._thaw, loop)

    def _thaw(self, loop: ProcessLoop) -> None:
        if self.loop is loop:
            self.is_frozen = False
            self._returned()
            self.network.world.resume(loop)

    def absent_until(self, now: float) -> list[Span]:
        """Return when it, or what it cannot do without, was dead or stood still."""
        own = [*self.absences, *([Span(self.away_since, now)] if self.away_since < now else ())]
        return [*own, *(span for child in self.children for span in child.absent_until(now))]

    def _left(self) -> None:
        self.away_since = min(self.away_since, self.network.world.now)

    def _returned(self) -> None:
        if self.away_since < math.inf:
            self.absences.append(Span(self.away_since, self.network.world.now))
        self.away_since = math.inf

    def _ended(self, loop: ProcessLoop, whole: Any) -> None:
        if self.loop is not loop:
            return
        if not whole.cancelled() and whole.exception():
            self.crashes.append(whole.exception())
        self.kill()
