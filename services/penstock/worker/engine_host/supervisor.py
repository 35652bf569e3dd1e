"""The engine process as the front sees it: started, fed, noticed at once when it dies, and started again."""

import asyncio
import socket
import time
from collections.abc import Callable

import structlog

from penstock.worker.engine_host.pipe import EnginePipe
from penstock.worker.engine_host.process import EngineProcess

log = structlog.get_logger()

RESTART_BACKOFF_S = (0.2, 30.0)  # s; first and longest wait before another start
HEALTHY_AFTER_S = 60.0  # s; an engine that lived so long died of something else than its start
EXIT_TIMEOUT_S = 3.0  # s; from a closed pipe to SIGKILL
FINAL_MESSAGES_TIMEOUT_S = 0.5  # s; from the engine's death to the end of what it had said, where its pipe stays open


class EngineStartFailed(Exception):
    """The engine ended before it was ready for the first time: starting it again would not help."""


class EngineSupervisor:
    """Keeps one engine process for as long as `run` runs. Callbacks are plain calls on the loop.

    `on_message` gets what the engine says; `on_down` comes once for each process that ended, as soon as it did, and
    says whether it crashed, or hung and was killed for it: whether what it was at may be to blame.
    """

    def __init__(
        self,
        options: object,
        *,
        on_message: Callable[[object], None],
        on_down: Callable[[bool], None],
        python: str = "",
    ) -> None:
        self._options = options
        self._python = python
        self._on_message = on_message
        self._on_down = on_down
        self._pipe: EnginePipe | None = None
        self._was_ever_ready = False
        self._process: EngineProcess | None = None
        self._is_hung = False
        self.starts = 0
        self.load_s = 0.0  # from the last start of one to its being ready
        self._started_at = 0.0

    def __repr__(self) -> str:
        return f"<EngineLink pid {self.pid}, {self.starts} starts>"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)

    def on_ready(self) -> None:
        """Called by who understands the messages: from now on a dead engine is started again."""
        self._was_ever_ready = True
        self.load_s = time.monotonic() - self._started_at

    def send(self, message: object) -> bool:
        """Queue a message; False when there is no engine, in which case `on_down` has come or is about to."""
        if self._pipe is None or self._pipe.closed.done():
            return False
        self._pipe.send(message)
        return True

    def kill(self) -> None:
        """End a process that does not answer; it is noticed and replaced like any that crashed."""
        if self._process:
            self._is_hung = True
            self._process.kill()

    async def run(self) -> None:
        """Keep an engine until cancelled. Raises EngineFailed when the first one never became ready."""
        wait = RESTART_BACKOFF_S[0]
        while True:
            self._started_at = time.monotonic()
            status = await self._run_once()
            if not self._was_ever_ready:
                raise EngineStartFailed(f"the engine could not start (exit status {status}); its log says why")
            if time.monotonic() - self._started_at > HEALTHY_AFTER_S:
                wait = RESTART_BACKOFF_S[0]
            log.error("engine_died", status=status, restart_in_s=wait)
            await asyncio.sleep(wait)
            wait = min(2 * wait, RESTART_BACKOFF_S[1])

    async def _run_once(self) -> int:
        """Run one engine process to its end; returns its exit status, and leaves no process whatever happens."""
        self._process, self._pipe = await self._start()
        self._is_hung = False
        self.starts += 1
        try:
            await _wait_until_dead(self._process, self._pipe)
            self._on_down(self._is_hung or self._process.has_crashed)
        finally:
            self._pipe.close()
            self._pipe = None
            status = await self._process.stop(EXIT_TIMEOUT_S)
            self._process = None
        return status

    async def _start(self) -> tuple[EngineProcess, EnginePipe]:
        ours, theirs = socket.socketpair()
        with theirs:  # a copy of their end kept open here would hide the engine's death
            _, pipe = await asyncio.get_running_loop().create_unix_connection(
                lambda: EnginePipe(self._on_message), sock=ours
            )
            process = EngineProcess(theirs, self._python)
        pipe.send(self._options)
        return process, pipe


async def _wait_until_dead(process: EngineProcess, pipe: EnginePipe) -> None:
    """Until both the process and the pipe have ended, and with it all that the engine said; where one of them does not
    follow the other soon, until the first.
    """
    ends = [process.exited, pipe.closed]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait(ends, timeout=FINAL_MESSAGES_TIMEOUT_S)
