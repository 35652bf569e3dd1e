"""Prefix index: the KV blocks in the prefix caches of workers, as the workers report them."""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.chassis.prefix_depths import PREFIX_DEPTHS

MAX_ENTRIES = 1_000_000  # pairs of a worker and a block; about 200 MiB
PLACED_DEPTHS_STRIDE = 4  # every fourth depth of a placed prompt is kept, as each placement pays for them
MAX_PLACED_BLOCKS = 65_536  # of each of two generations of placements; about 15 MiB together
MIN_SWEEP_BLOCKS = 1_024  # blocks in the order of eviction, below which those that are gone are not swept


@dataclass(slots=True)
class PrefixIndex:
    """KV blocks by hash. Hashes are chained: a cache holds a block only together with the blocks before it.

    Caches evict the end of a chain before its beginning, so that the longest cached prefix is found by bisection.

    The index has at most `max_entries` pairs of a worker and a block. Beyond, it evicts the oldest block that no ticket
    has named since it was last considered (second chance). Of an evicted block, tickets are placed as if no worker held
    it and the blocks after it: the index counts fewer cached blocks than there are, never more.

    Workers report blocks when these are computed. Until then, prompts that were placed recently stand for them, because
    a worker computes blocks that its prompts have in common once.
    """

    max_entries: int = MAX_ENTRIES
    evicted_entries: int = 0  # since the start
    _holders: dict[int, str | dict[str, None]] = field(default_factory=dict)  # one worker, or several, by block
    _held: dict[str, set[int]] = field(default_factory=dict)  # blocks by worker
    _entries: int = 0
    _eviction_order: deque[int] = field(default_factory=deque)  # blocks, oldest first; may have blocks that are gone
    _named: set[int] = field(default_factory=set)  # blocks that a ticket has named since they were considered
    _placed: dict[int, str] = field(default_factory=dict)  # worker of the newest placed prompt, by block
    _placed_before: dict[int, str] = field(default_factory=dict)  # the generation before

    def __len__(self) -> int:
        return len(self._holders)

    def apply(self, worker: str, added: Iterable[int], removed: Iterable[int], *, is_snapshot: bool) -> None:
        if is_snapshot:
            self.remove_worker(worker)
        held = self._held.setdefault(worker, set())
        for name in added:
            if name not in held:
                held.add(name)
                self._add(name, worker)
        for name in removed:
            if name in held:
                held.discard(name)
                self._drop(name, worker)
        while self._entries > self.max_entries:
            self._evict_one()
        self._sweep()

    def on_placed(self, worker: str, hashes: Sequence[int]) -> None:
        """Expect the blocks of a prompt at its worker until the second call of `expire_placed` from now on."""
        if len(self._placed) >= MAX_PLACED_BLOCKS:
            self.expire_placed()
        self._placed.update(dict.fromkeys(hashes[PLACED_DEPTHS_STRIDE - 1 :: PLACED_DEPTHS_STRIDE], worker))

    def expire_placed(self) -> None:
        self._placed_before, self._placed = self._placed, {}

    def expected_prefix(self, hashes: Sequence[int]) -> tuple[str, int]:
        """Return the worker of the placed prompt with the longest common prefix, and its blocks; "" and 0 if none."""
        placed, before = self._placed, self._placed_before
        names = hashes[PLACED_DEPTHS_STRIDE - 1 :: PLACED_DEPTHS_STRIDE]
        if not names or (names[0] not in placed and names[0] not in before):
            return "", 0
        count = bisect_left(names, x=True, lo=1, key=lambda name: name not in placed and name not in before)
        name, depths = names[count - 1], min(count * PLACED_DEPTHS_STRIDE, len(PREFIX_DEPTHS))
        return placed.get(name) or before[name], PREFIX_DEPTHS[depths - 1]

    def remove_worker(self, worker: str) -> None:
        for name in self._held.pop(worker, ()):
            self._drop(name, worker)
        self._sweep()

    def workers_with_longest_prefix(self, hashes: Sequence[int]) -> Collection[str]:
        """Return the workers with the longest cached prefix; empty if no worker holds the first block."""
        depth = bisect_left(hashes, x=True, key=lambda name: name not in self._holders)
        self._named.update(hashes[:depth])
        holders = self._holders[hashes[depth - 1]] if depth else ()
        return (holders,) if isinstance(holders, str) else holders

    def cached_blocks(self, worker: str, hashes: Sequence[int]) -> int:
        """Return the number of leading blocks that a worker holds, of a prompt with `hashes` at `PREFIX_DEPTHS`."""
        held = self._held.get(worker)
        if not held or not hashes or hashes[0] not in held:
            return 0
        depths = bisect_left(hashes, x=True, lo=1, key=lambda name: name not in held)
        return PREFIX_DEPTHS[min(depths, len(PREFIX_DEPTHS)) - 1]

    def _add(self, block_hash: int, worker: str) -> None:
        self._entries += 1
        holders = self._holders.get(block_hash)
        if holders is None:
            self._holders[block_hash] = worker
            self._eviction_order.append(block_hash)
        elif isinstance(holders, str):
            self._holders[block_hash] = {holders: None, worker: None}
        else:
            holders[worker] = None

    def _drop(self, block_hash: int, worker: str) -> None:
        """Remove a worker that holds a block."""
        self._entries -= 1
        holders = self._holders[block_hash]
        if isinstance(holders, dict):
            del holders[worker]
        if isinstance(holders, str) or not holders:
            del self._holders[block_hash]
            self._named.discard(block_hash)

    def _evict_one(self) -> None:
        """Consider the oldest block: evict it, or keep it if a ticket has named it."""
        block_hash = self._eviction_order.popleft()
        if block_hash in self._named:
            self._named.discard(block_hash)
            self._eviction_order.append(block_hash)
        elif holders := self._holders.get(block_hash):
            for worker in (holders,) if isinstance(holders, str) else list(holders):
                self._held[worker].discard(block_hash)
                self._drop(block_hash, worker)
                self.evicted_entries += 1

    def _sweep(self) -> None:
        """Forget blocks that are gone. At each doubling, this costs O(1) per block."""
        if len(self._named) > len(self._holders):
            self._named.intersection_update(self._holders)
        if len(self._eviction_order) > max(MIN_SWEEP_BLOCKS, 2 * len(self._holders)):
            present = (each for each in self._eviction_order if each in self._holders)
            self._eviction_order = deque(dict.fromkeys(present))
