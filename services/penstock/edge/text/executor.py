"""Thread pools for work that would block the event loop: tokenizing prompts and building tokenizers."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

SMALL_INPUT_BYTES = 64 * 2**10  # about 10 ms of tokenizing

Result = TypeVar("Result")


class TokenizerPools:
    """Two thread pools, so that a short prompt never waits for a long one. A context manager shuts them down."""

    def __init__(self, threads_per_pool: int) -> None:
        self._small = ThreadPoolExecutor(threads_per_pool, "tokenizer-small")
        self._large = ThreadPoolExecutor(threads_per_pool, "tokenizer-large")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in (self._small, self._large):
            pool.shutdown(cancel_futures=True)

    async def run(self, size: int, work: Callable[[], Result]) -> Result:
        """Run `work` on `size` bytes of input in the pool for that size. The edge's request limits bound the calls."""
        pool = self._small if size <= SMALL_INPUT_BYTES else self._large
        return await asyncio.get_running_loop().run_in_executor(pool, work)
