"""Child processes: each with a log, watched for exits, drained in order, and killed in the end."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.local_mesh import pdeathsig_exec as child_program
from penstock.local_mesh.plan import ProcessSpec

LOG_TAIL_LINES = 15
KILL_TIMEOUT_S = 25.0  # s after SIGTERM; above the tiers' own drain grace of 20 s


class ChildFailedError(Exception):
    """A process of the mesh exited unexpectedly; the message contains the end of its log."""


@dataclass
class ChildProcess:
    """One running process of the mesh."""

    spec: ProcessSpec
    process: asyncio.subprocess.Process
    log: Path

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    def exit_report(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        tail = "\n".join(f"  | {line}" for line in lines)
        return f"{self.spec.name} ended with {_describe_exit(self.process.returncode)}; the end of {self.log}:\n{tail}"


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


class ChildProcesses:
    """The children of one mesh. `on_exit` is called for each that exits without being stopped."""

    def __init__(self, logs: Path, on_exit: Callable[[ChildProcess], None]) -> None:
        self.children: list[ChildProcess] = []
        self._logs = logs
        self._on_exit = on_exit
        self._stopping: set[str] = set()

    async def start(self, spec: ProcessSpec) -> ChildProcess:
        log = self._logs / f"{spec.name}.log"
        with log.open("ab") as stderr:  # a restarted process appends to its log
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", child_program.__file__, str(os.getpid()), *spec.argv),
                env={**os.environ, **spec.environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C reaches only this process, which drains the children in order
            )
        child = ChildProcess(spec, process, log)
        self.children.append(child)
        return child

    def named(self, name: str) -> ChildProcess:
        """Raises KeyError if there is no such process."""
        for child in self.children:
            if child.spec.name == name:
                return child
        raise KeyError(name)

    async def restart(self, name: str) -> ChildProcess:
        """Restart a process that has exited, with the same address and the same place in the list."""
        ended = self.named(name)
        await ended.process.wait()
        place = self.children.index(ended)
        self.children.remove(ended)
        self._stopping.discard(name)
        child = await self.start(ended.spec)
        self.children.insert(place, self.children.pop())
        return child

    async def watch_exits(self) -> None:
        """Report exits until cancelled or until all have exited."""
        await asyncio.gather(*(self._watch_one(child) for child in self.children))

    async def _watch_one(self, child: ChildProcess) -> None:
        await child.process.wait()
        if child.spec.name not in self._stopping:
            self._on_exit(child)

    async def stop(self, tiers: Sequence[str]) -> list[ChildProcess]:
        """Send SIGTERM to the processes of `tiers`, wait for their drain, kill the rest; return the killed ones."""
        chosen = [child for child in self.children if child.spec.tier in tiers]
        self._stopping.update(child.spec.name for child in chosen)
        return [
            child
            for child, killed in zip(chosen, await asyncio.gather(*map(self._stop_one, chosen)), strict=True)
            if killed
        ]

    async def _stop_one(self, child: ChildProcess) -> bool:
        with suppress(ProcessLookupError):
            child.process.terminate()
        try:
            async with asyncio.timeout(KILL_TIMEOUT_S):
                await child.process.wait()
        except TimeoutError:
            child.process.kill()
            await child.process.wait()
            return True
        return False

    async def kill_all(self) -> None:
        for child in self.children:
            with suppress(ProcessLookupError):
                child.process.kill()
        await asyncio.gather(*(child.process.wait() for child in self.children))
