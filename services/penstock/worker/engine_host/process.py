"""One engine process: started on its end of a pipe, known to be dead at once, and ended with all that it started."""

import asyncio
import os
import signal
import socket
import subprocess
import sys

CHILD_MODULE = "penstock.worker.engine_host.child"


class EngineProcess:
    """Must be given its `end`, whatever happens. `exited` is done as soon as the process is dead, not yet reaped."""

    def __init__(self, pipe: socket.socket, python: str = "") -> None:
        """`pipe` is the child's end; the caller closes its own copy. `python` is another interpreter than our own."""
        # Not asyncio's way of starting: uvloop forks, and gRPC's threads do not take that well.
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [python or sys.executable, "-m", CHILD_MODULE, str(pipe.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(pipe.fileno(),),
            start_new_session=True,  # Ctrl-C in a terminal is the front's to answer
        )
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        # Beside its end of the pipe, which a process that it started may have inherited.
        self._pidfd = os.pidfd_open(self.pid)
        loop.add_reader(self._pidfd, self._on_exit)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_crashed(self) -> bool:
        """Whether it is dead by what it did itself, not by a SIGKILL or SIGTERM from outside."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return False
        is_killed = found.si_code == os.CLD_KILLED and found.si_status in (signal.SIGKILL, signal.SIGTERM)
        return not is_killed and found.si_status != 0

    def kill(self) -> None:
        self._process.kill()

    async def stop(self, timeout: float) -> int:
        """Give it `timeout` seconds to end by itself, then kill what is left of it; returns its exit status.

        Who is cancelled meanwhile waits no longer for it to end by itself, and leaves nothing of it either.
        """
        try:
            # A bare await that is cut short would cancel the future.
            await asyncio.wait([self.exited], timeout=timeout)
        finally:
            # Its own session is all that it started. Until it is reaped here, no other process can have its number.
            os.killpg(self.pid, signal.SIGKILL)
            status = self._process.wait()  # no longer than a dying process takes
        return status

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.exited.set_result(None)
