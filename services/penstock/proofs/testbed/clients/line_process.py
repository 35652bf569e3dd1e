"""A Python process that exchanges lines of JSON with its parent over standard input and output."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

EXIT_TIMEOUT_S = 5.0  # s, for the process to exit when its standard input is closed
MAX_LINE_BYTES = 2**24


class LineProcess:
    """The process, as its parent sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def send(self, message: object) -> None:
        assert self._process.stdin
        self._process.stdin.write(orjson.dumps(message) + b"\n")
        await self._process.stdin.drain()

    async def receive(self) -> Any:
        """Return one message. Raises RuntimeError if the process has ended."""
        assert self._process.stdout
        if line := await self._process.stdout.readline():
            return orjson.loads(line)
        raise RuntimeError("a process of the proof has ended; its standard error has the reason")

    async def close(self) -> None:
        """Close its standard input, and kill it if it does not exit within `EXIT_TIMEOUT_S`."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def open_line_process(module: str) -> AsyncIterator[LineProcess]:
    """Run `python -m module` for the duration of the block."""
    process = LineProcess(
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_LINE_BYTES,
        )
    )
    try:
        yield process
    finally:
        await process.close()


async def read_message() -> Any:
    """Return one message from the parent; None at the end of standard input."""
    line = await asyncio.to_thread(sys.stdin.buffer.readline)
    return orjson.loads(line) if line else None


def write_message(message: object) -> None:
    """Send one message to the parent."""
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()
