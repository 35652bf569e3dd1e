"""One engine process: its start with its end of a pipe, the detection of its death, and the end of its descendants."""

import asyncio
import os
import signal
import socket
import subprocess
import sys

CHILD_MODULE = "penstock.worker.engine_host.child"


class EngineProcess:
    """A started process; the caller must call `stop` on every path. `exited` is done at its death, before reaping."""

    def __init__(self, pipe: socket.socket, python: str = "") -> None:
        """`pipe` is the child's end; the caller closes its own copy. `python` is an interpreter; empty: our own."""
        # Not asyncio's subprocesses, because uvloop forks, which is unsafe with gRPC's threads.
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [python or sys.executable, "-m", CHILD_MODULE, str(pipe.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(pipe.fileno(),),
            start_new_session=True,  # the worker process handles Ctrl-C in a terminal
        )
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        # The closed pipe alone is no sign of death, because a descendant may have inherited its end.
        self._pidfd = os.pidfd_open(self.pid)
        loop.add_reader(self._pidfd, self._on_exit)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_crashed(self) -> bool:
        """Whether the process died by its own fault, not by SIGKILL or SIGTERM from outside."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return False
        is_killed = found.si_code == os.CLD_KILLED and found.si_status in (signal.SIGKILL, signal.SIGTERM)
        return not is_killed and found.si_status != 0

    def kill(self) -> None:
        self._process.kill()

    async def stop(self, timeout: float) -> int:
        """Wait `timeout` seconds for its end, then kill it and its descendants; returns its exit status.

        If the caller is cancelled, the process is killed at once.
        """
        try:
            # `wait`, because cancelling a bare await would cancel the future.
            await asyncio.wait([self.exited], timeout=timeout)
        finally:
            # Its session has all its descendants. Until it is reaped here, no other process can have its pid.
            os.killpg(self.pid, signal.SIGKILL)
            status = self._process.wait()  # no longer than a dying process takes
        return status

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.exited.set_result(None)
