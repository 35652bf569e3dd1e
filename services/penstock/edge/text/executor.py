"""Work that would hold up the loop: tokenizing, and building tokenizers."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

SMALL_INPUT_BYTES = 64 * 2**10  # bytes of prompt, about 10 ms of tokenizing

Result = TypeVar("Result")


class TokenizerPools:
    """Two lanes, so that a short prompt never waits behind one that takes a second. Entered and left like a file."""

    def __init__(self, threads_per_pool: int) -> None:
        self._small = ThreadPoolExecutor(threads_per_pool, "tokenizer-small")
        self._large = ThreadPoolExecutor(threads_per_pool, "tokenizer-large")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in (self._small, self._large):
            lane.shutdown(cancel_futures=True)

    async def run(self, size: int, work: Callable[[], Result]) -> Result:
        """Run `work` on `size` bytes of input. Its callers are bounded by what the edge takes in at once."""
        lane = self._small if size <= SMALL_INPUT_BYTES else self._large
        return await asyncio.get_running_loop().run_in_executor(lane, work)
