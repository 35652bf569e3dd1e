"""Prefix index: the KV blocks in the prefix caches of workers, as the workers report them."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.chassis.prefix_depths import PREFIX_DEPTHS

MAX_BLOCKS_PER_WORKER = 65_536  # named blocks; a worker's further blocks are unknown, which costs cache hits only


@dataclass(slots=True)
class PrefixIndex:
    """KV blocks by hash. Hashes are chained: a cache holds a block only together with the blocks before it.

    Caches evict the end of a chain before its beginning, so that the longest cached prefix is found by bisection.
    """

    _holders: dict[int, dict[str, None]] = field(default_factory=dict)  # workers in order of arrival, by block
    _held: dict[str, set[int]] = field(default_factory=dict)  # blocks by worker

    def __len__(self) -> int:
        return len(self._holders)

    def apply(self, worker: str, added: Iterable[int], removed: Iterable[int], *, is_snapshot: bool) -> None:
        if is_snapshot:
            self.remove_worker(worker)
        held = self._held.setdefault(worker, set())
        for name in added:
            if len(held) >= MAX_BLOCKS_PER_WORKER:
                break
            held.add(name)
            self._holders.setdefault(name, {})[worker] = None
        for name in removed:
            held.discard(name)
            self._drop(name, worker)

    def remove_worker(self, worker: str) -> None:
        for name in self._held.pop(worker, ()):
            self._drop(name, worker)

    def workers_with_longest_prefix(self, hashes: Sequence[int]) -> Collection[str]:
        """Return the workers with the longest cached prefix; empty if no worker holds the first block."""
        depth = bisect_left(hashes, x=True, key=lambda name: name not in self._holders)
        return self._holders[hashes[depth - 1]] if depth else ()

    def cached_blocks(self, worker: str, hashes: Sequence[int]) -> int:
        """Return the number of leading blocks that a worker holds, of a prompt with `hashes` at `PREFIX_DEPTHS`."""
        held = self._held.get(worker)
        depths = bisect_left(hashes, x=True, key=lambda name: name not in held) if held else 0
        return PREFIX_DEPTHS[min(depths, len(PREFIX_DEPTHS)) - 1] if depths else 0

    def _drop(self, block_hash: int, worker: str) -> None:
        holders = self._holders.get(block_hash, {})
        holders.pop(worker, None)
        if not holders:
            self._holders.pop(block_hash, None)
