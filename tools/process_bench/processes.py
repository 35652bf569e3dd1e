"""Processes of a benchmark: a tier with a watch of its callbacks, and the programs at the other ends of its streams."""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

WATCH = Path(__file__).with_name("callback_watch.py")
MAX_CALLBACK_S = 0.02  # s of CPU time; longer callbacks would delay the first tokens of other requests
STOP_TIMEOUT_S = 10.0


class PhaseFigures(NamedTuple):
    """Figures of a tier's process over one phase of a benchmark."""

    wall_s: float
    cpu_s: float  # in user mode and in the kernel, transport included
    longest_callback_s: float  # of CPU time, garbage collection included
    longest_callback: str
    longest_collection_s: float  # garbage collection, part of some callback
    callbacks: int

    @property
    def is_never_held(self) -> bool:
        """Whether callbacks ran and none took longer than `MAX_CALLBACK_S`."""
        return self.callbacks > 0 and self.longest_callback_s <= MAX_CALLBACK_S

    @property
    def loop_text(self) -> str:
        longest_ms, collection_ms = 1e3 * self.longest_callback_s, 1e3 * self.longest_collection_s
        return (
            f"longest callback {longest_ms:.1f} ms ({self.longest_callback}), garbage collection {collection_ms:.1f} ms"
        )


@dataclass
class TierProcess:
    """A tier that listens, with its address, its closed streams, and the figures of the present phase."""

    process: asyncio.subprocess.Process
    address: str = ""
    closed_streams: Counter[str] = field(default_factory=Counter)  # by reason
    _phase_begun_at: float = 0.0
    _cpu_before_s: float = 0.0

    async def listens(self) -> None:
        assert self.process.stderr
        async for line in self.process.stderr:
            if (event := _log_event(line)).get("event") == "listening":
                self.address = str(event["address"])
                return
        raise SystemExit("the process has ended before it listened")

    async def read_log(self) -> None:
        """Count closed streams until the process ends."""
        assert self.process.stderr
        async for line in self.process.stderr:
            event = _log_event(line)
            if event.get("event") == "stream_closed":
                self.closed_streams[event["because"]] += 1

    async def begin_phase(self) -> None:
        await self._take_callbacks()
        self._phase_begun_at, self._cpu_before_s = time.monotonic(), cpu_s(self.process.pid)

    async def end_phase(self) -> PhaseFigures:
        wall_s, spent = time.monotonic() - self._phase_begun_at, cpu_s(self.process.pid) - self._cpu_before_s
        found = await self._take_callbacks()
        return PhaseFigures(
            wall_s, spent, found["longest_s"], found["longest"], found["longest_collection_s"], found["callbacks"]
        )

    async def _take_callbacks(self) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(b"\n")
        found: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return found


@asynccontextmanager
async def watched_tier(tier: str, **settings: object) -> AsyncIterator[TierProcess]:
    """Run a tier on a free port of this machine with `settings` (PENSTOCK_<TIER>_*)."""
    own = {"LISTEN": "127.0.0.1:0", "LOG_LEVEL": "debug", **settings}
    environment = {f"PENSTOCK_{tier.upper()}_{name}": str(value) for name, value in own.items()}
    async with running(str(WATCH), tier, **environment) as process:
        found = TierProcess(process)
        await found.listens()
        reading = asyncio.create_task(found.read_log())
        try:
            yield found
        finally:
            reading.cancel()


@asynccontextmanager
async def running(*command: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a Python program until the block ends. Other settings of this environment do not reach it."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=pipe, stdout=pipe, stderr=pipe, env=known | environment, limit=2**20
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def discard(stream: asyncio.StreamReader | None) -> None:
    """Read a stream to its end, so that its writer never waits."""
    while stream and await stream.read(2**16):
        pass


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, in user mode and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _log_event(line: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line) if line.startswith(b"{") else {}
    return found
