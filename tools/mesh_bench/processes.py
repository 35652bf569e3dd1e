"""Child processes of a comparison: start, wait for a port, CPU time, memory, stop."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.bench.cpu_wait import cpu_use_of

_STOP_TIMEOUT_S = 10.0
_IDLE_SHARE = 0.1  # of a core; a mesh without load uses less than half of it
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy")


class StartFailed(Exception):
    """A process ended or did not listen in time. The message names its log."""


def start(command: Sequence[str], settings: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, without proxies."""
    inherited = {name: value for name, value in os.environ.items() if name not in _PROXIES}
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env={**inherited, **settings},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process that `start` returned, and its descendants."""
    descendants = tree(process.pid)[1:]
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in descendants:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_listening(port: int, process: subprocess.Popen[bytes], log: Path, timeout: float = 120.0) -> None:
    """Raises StartFailed if the process ends or does not listen within `timeout` s."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StartFailed(f"it ended with status {process.returncode}; see {log}")
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        time.sleep(0.05)
    raise StartFailed(f"nothing listens on port {port} after {timeout:.0f} s; see {log}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def tree(pid: int) -> list[int]:
    """Return `pid` and its descendants."""
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        for file in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            with suppress(OSError):  # the thread has ended
                waiting += map(int, file.read_text().split())
    return found


def cpu_us_of(pids: Iterable[int | str]) -> float:
    return cpu_use_of(pids).ran_s * 1e6


def memory_mb(pids: Iterable[int]) -> float:
    """Return the resident memory in MB."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def wait_idle(pids: Sequence[int], timeout: float = 8.0) -> None:
    """Return once the processes together use less than `_IDLE_SHARE` of a core, or after `timeout` s."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        before = cpu_us_of(pids)
        time.sleep(0.25)
        if cpu_us_of(pids) - before < _IDLE_SHARE * 0.25e6:
            return
