"""A process of clients, and the few words in which it is told to have them come and leave.

In processes of their own, clients that leave at once wait for a core at most, and not for one another. The words are
lines of JSON: first a `Place`, then for each crowd a `Call`, answered by `HERE` once all have come, a line to have
them leave, and the answer to that, a `Report`.
"""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import uvloop

from penstock.chassis.lifecycle import background, freeze_gc
from penstock.proofs.requests import catalog
from penstock.proofs.testbed.cancelling_clients import Doors, Leaver, Visit, open_doors

HERE = b'"here"\n'
WISHES = 16
BEAT = 0.01  # s
PARTING = 5.0  # s, for a process that has heard the end to go by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the clients ask, and for what."""

    edges: list[str]
    fronts: list[str]
    api_key: str
    tokens: int  # of an answer
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    name: str
    door: str
    size: int
    arriving: float  # s, over which they come
    leaving: float  # s, over which they leave; 0: all at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    leavers: list[Leaver]
    late: list[float]  # s by which a timer was late, again and again while clients came

    @classmethod
    def from_json(cls, line: bytes) -> "Report":
        found = orjson.loads(line)
        return cls(leavers=[Leaver(**each) for each in found["leavers"]], late=found["late"])


async def serve(place: Place) -> None:
    """Do what the lines on the standard input say, to their end."""
    async with open_doors(place.edges, place.fronts, place.api_key) as doors:
        while line := await _line():
            report = await _visit(doors, place, Call(**line))
            _say(orjson.dumps(report) + b"\n")


async def _visit(doors: Doors, place: Place, call: Call) -> Report:
    rng = random.Random(f"{place.seed}-{call.name}")
    wishes = catalog(WISHES, place.tokens, place.seed)
    late: list[float] = []
    async with asyncio.TaskGroup() as group:
        crowd = []
        async with background(_beat(late)):
            for number in range(call.size):
                await asyncio.sleep(rng.uniform(0, 2) * call.arriving / call.size)
                crowd.append(Visit(doors, call.door, rng.choice(wishes), f"{call.name}-{number}", group))
        _say(HERE)
        await _line()
        for visit in crowd:
            if call.leaving:
                await asyncio.sleep(rng.uniform(0, 2) * call.leaving / call.size)
            await visit.leave()
    return Report(leavers=[await visit.over() for visit in crowd], late=late)


async def _beat(late: list[float]) -> None:
    while True:
        due = time.monotonic() + BEAT
        await asyncio.sleep(BEAT)
        late.append(time.monotonic() - due)


async def _line() -> Any:
    """One line from whoever started this process; nothing at its end."""
    line = await asyncio.to_thread(sys.stdin.buffer.readline)
    return orjson.loads(line) if line else None


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


class Crowd:
    """One such process, as who started it sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def come(self, call: Call) -> None:
        """Return once all are there, and have asked."""
        await self.tell(call)
        if await self._heard() != HERE:
            raise RuntimeError("the clients' process said something else than that they are there")

    async def leave(self) -> Report:
        await self.tell(None)
        return Report.from_json(await self._heard())

    async def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            async with asyncio.timeout(PARTING):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def tell(self, word: object) -> None:
        assert self._process.stdin
        self._process.stdin.write(orjson.dumps(word) + b"\n")
        await self._process.stdin.drain()

    async def _heard(self) -> bytes:
        assert self._process.stdout
        if line := await self._process.stdout.readline():
            return line
        raise RuntimeError("the clients' process ended; what it wrote to standard error says why")


@asynccontextmanager
async def open_crowd(place: Place) -> AsyncIterator[Crowd]:
    """Have a process of clients for as long as the block runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    crowd = Crowd(process)
    try:
        await crowd.tell(place)
        yield crowd
    finally:
        await crowd.end()


if __name__ == "__main__":
    freeze_gc()
    uvloop.run(serve(Place(**orjson.loads(sys.stdin.buffer.readline()))))
