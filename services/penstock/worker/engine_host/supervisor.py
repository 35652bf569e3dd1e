"""The supervisor of the engine process: starts it, passes messages, and restarts it after its death."""

import asyncio
import socket
import time
from collections.abc import Callable

import structlog

from penstock.worker.engine_host.pipe import EnginePipe
from penstock.worker.engine_host.process import EngineProcess

log = structlog.get_logger()

RESTART_BACKOFF_S = (0.2, 30.0)  # first and longest wait before a restart
HEALTHY_AFTER_S = 60.0  # lifetime after which the backoff starts again, as the start was not the cause of the death
EXIT_TIMEOUT_S = 3.0  # from a closed pipe to SIGKILL
FINAL_MESSAGES_TIMEOUT_S = 0.5  # for final messages after the engine's death, if its pipe stays open


class EngineStartFailed(Exception):
    """The first engine ended before it was ready, so a restart would not help."""


class EngineSupervisor:
    """Keeps one engine process while `run` runs. Callbacks are plain calls on the loop.

    `on_message` receives the engine's messages. `on_down` is called once for each process, as soon as it has ended; its
    argument is True if the engine crashed or was killed because it hung, so that one of its runs may be the cause.
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
        self.load_s = 0.0  # from the last start to `on_ready`
        self._started_at = 0.0

    def __repr__(self) -> str:
        return f"<EngineSupervisor pid {self.pid}, {self.starts} starts>"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)

    def on_ready(self) -> None:
        """Record that the engine is ready, called by the receiver of its messages; from now on it is restarted."""
        self._was_ever_ready = True
        self.load_s = time.monotonic() - self._started_at

    def send(self, message: object) -> bool:
        """Queue a message. Return False without an engine; then `on_down` was or is about to be called."""
        if self._pipe is None or self._pipe.closed.done():
            return False
        self._pipe.send(message)
        return True

    def kill(self) -> None:
        """Kill an engine that hangs; it is then restarted like one that crashed."""
        if self._process:
            self._is_hung = True
            self._process.kill()

    async def run(self) -> None:
        """Keep an engine running until cancelled. Raises EngineStartFailed if the first one never became ready."""
        backoff_s = RESTART_BACKOFF_S[0]
        while True:
            self._started_at = time.monotonic()
            status = await self._run_once()
            if not self._was_ever_ready:
                raise EngineStartFailed(f"the engine could not start (exit status {status}); see its log for the cause")
            if time.monotonic() - self._started_at > HEALTHY_AFTER_S:
                backoff_s = RESTART_BACKOFF_S[0]
            log.error("engine_died", status=status, restart_in_s=backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, RESTART_BACKOFF_S[1])

    async def _run_once(self) -> int:
        """Run one engine process to its end and return its exit status; no process is left on any path."""
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
        with theirs:  # an open copy of the engine's end would hide its death
            _, pipe = await asyncio.get_running_loop().create_unix_connection(
                lambda: EnginePipe(self._on_message), sock=ours
            )
            process = EngineProcess(theirs, self._python)
        pipe.send(self._options)
        return process, pipe


async def _wait_until_dead(process: EngineProcess, pipe: EnginePipe) -> None:
    """Wait for the first of process and pipe to end, then at most `FINAL_MESSAGES_TIMEOUT_S` for the other."""
    ends = [process.exited, pipe.closed]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait(ends, timeout=FINAL_MESSAGES_TIMEOUT_S)
