"""Starts processes of the tiers as a mesh on loopback and measures how long each takes until its health says SERVING.

Each process comes from an environment of its own and this module from none of them: it needs Python alone.
"""

import json
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition, Thread
from typing import NamedTuple

HEALTH_WATCH = Path(__file__).with_name("health_watch.py")
KEY = "pk_imagecheck_0123456789abcdefghijklmnop"  # of the development tenant; works on loopback alone
_TAIL = 15  # lines of a log in a failure
_END_AFTER = 10.0  # s from SIGTERM to SIGKILL

# Settings by tier, in an order of start in which each names only addresses that are known by then.
SETTINGS: dict[str, dict[str, str]] = {
    "auth": {"DEV_KEY": KEY},
    "queue": {},
    "scheduler": {"QUEUES": "{queue}"},
    "worker": {"SCHEDULERS": "{scheduler}"},
    "edge": {"AUTHS": "{auth}", "QUEUES": "{queue}", "HTTP_LISTEN": "127.0.0.1:0"},
    "batch": {"EDGES": "{edge}"},
    "routing": {"EDGES": "{edge}/{edge_http}"},
    "picker": {"ENDPOINTS": "{edge_http}"},
}


class Launch(NamedTuple):
    """How to start a process."""

    command: Sequence[str]
    variables: Mapping[str, str]
    folder: Path  # which it runs in


class Running:
    """A process, and a thread that reads its output to the end."""

    def __init__(
        self, launch: Launch, read: "Callable[[subprocess.Popen[str]], None]", stderr: int | None = None
    ) -> None:
        self._process = subprocess.Popen(
            launch.command,
            cwd=launch.folder,
            env=launch.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
        )
        self._reader = Thread(target=read, args=(self._process,), daemon=True)
        self._reader.start()

    def write_line(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Let it drain for `_END_AFTER` seconds at most."""
        self._process.terminate()
        try:
            self._process.wait(_END_AFTER)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reader.join(_END_AFTER)
        with self._process:  # closes its pipes
            self._process.wait()


class Mesh:
    """Processes that run: how many seconds each took from its start to SERVING, or the reason why it did not serve."""

    def __init__(self, watch: Launch, within: float, sockets: str) -> None:
        """`watch` starts HEALTH_WATCH; `within`: s from its start in which a process is to serve.

        `sockets` is a folder with a short path, for unix sockets.
        """
        self._sockets = sockets
        self.addresses: dict[str, str] = {}  # by name; NAME_http for an HTTP server, NAME_admin for operators
        self.seconds: dict[str, float] = {}
        self.failures: dict[str, str] = {}
        self._within = within
        self._begun: dict[str, float] = {}
        self._logs: dict[str, deque[str]] = {}
        self._changed = Condition()
        self.watching = Running(watch, self._read_watch)

    def begin(self, name: str, tier: str, launch: Launch, settings: Mapping[str, str]) -> "Running":
        """Start a process and return once it listens or has failed."""
        admin = {"ADMIN_LISTEN": f"unix:{self._sockets}/{name}"}
        told = {"LISTEN": "127.0.0.1:0", **admin, **SETTINGS[tier], **settings}
        with self._changed:  # where a process it needs has failed, this one says so itself
            known = _Known(self.addresses)
        variables = {f"PENSTOCK_{tier.upper()}_{key}": text.format_map(known) for key, text in told.items()}
        self._begun[name], self._logs[name] = time.monotonic(), deque(maxlen=_TAIL)
        launch = launch._replace(variables={**launch.variables, **variables})
        running = Running(launch, lambda process: self._read_log(name, process), stderr=subprocess.STDOUT)
        self._wait_for(name, lambda: name in self.addresses)
        return running

    def finish(self) -> None:
        """Return once every process serves or has failed."""
        for name in self._begun:
            self._wait_for(name, lambda: name in self.seconds)  # noqa: B023 - called before the next name

    def _read_watch(self, watching: "subprocess.Popen[str]") -> None:
        assert watching.stdout
        for line in watching.stdout:
            with self._changed:
                name = next(name for name, each in self.addresses.items() if each == line.strip())
                self.seconds[name] = time.monotonic() - self._begun[name]
                self._changed.notify_all()

    def _wait_for(self, name: str, is_there: Callable[[], bool]) -> None:
        with self._changed:
            left = self._begun[name] + self._within - time.monotonic()
            if not self._changed.wait_for(lambda: is_there() or name in self.failures, max(0.0, left)):
                self._fail(name, f"was not SERVING after {self._within:.0f} s")

    def _read_log(self, name: str, process: "subprocess.Popen[str]") -> None:
        assert process.stdout
        for line in process.stdout:
            self._logs[name].append(line)
            event = _event(line)
            place = {
                "listening": name,
                "http_listening": f"{name}_http",
                "admin_listening": f"{name}_admin",
            }.get(event.get("event", ""))
            if place:
                self._note_address(place, event["address"])
        status = process.wait()
        with self._changed:
            if name not in self.seconds:
                self._fail(name, f"ended with status {status}")

    def _note_address(self, place: str, address: str) -> None:
        with self._changed:
            self.addresses[place] = address
            self._changed.notify_all()
        if not place.endswith(("_http", "_admin")):
            self.watching.write_line(address)

    def _fail(self, name: str, reason: str) -> None:
        tail = "".join(self._logs[name])
        self.failures.setdefault(name, f"{name} {reason}; the end of its log:\n{tail}")
        self._changed.notify_all()


class _Known(dict[str, str]):
    """Addresses; port 1 of loopback, where nothing listens, for those of processes that failed."""

    def __missing__(self, name: str) -> str:
        return "127.0.0.1:1"


@contextmanager
def running_mesh(
    processes: Mapping[str, tuple[str, Launch, Mapping[str, str]]], watch: Launch, within: float
) -> Iterator[Mesh]:
    """Run `processes` (name: tier, launch, more settings) until the block is left; each serves or has failed by then.

    `watch` is how to start HEALTH_WATCH.
    """
    with ExitStack() as stack:
        sockets = stack.enter_context(TemporaryDirectory(prefix="pk-", dir="/tmp"))  # see `sockets`
        mesh = Mesh(watch, within, sockets)
        stack.callback(mesh.watching.end)
        for name, (tier, launch, settings) in processes.items():
            stack.callback(mesh.begin(name, tier, launch, settings).end)
        mesh.finish()
        yield mesh


def _event(line: str) -> dict[str, str]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
