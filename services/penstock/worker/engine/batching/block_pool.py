"""The pool of KV blocks of one engine: reference counts and the prefix cache. Knows no tensors."""

import hashlib
from array import array
from collections.abc import Iterable, Sequence

from penstock.worker.engine.batching.eviction import EvictionOrder

_DIGEST_BYTES = 16


def root_hash(salt: bytes) -> bytes:
    return hashlib.blake2b(salt, digest_size=_DIGEST_BYTES).digest()


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of the block that holds `token_ids` and follows the block with the hash `parent`."""
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=_DIGEST_BYTES).digest()


NO_WRITER = -1  # writer of an announced block whose writer has left


class BlockPool:
    """A fixed number of KV blocks with reference counts and a prefix cache.

    A block is in exactly one of three states: held (counted references), cached (no reference, found by its hash) or
    unused. Cached and unused blocks together are free. `EvictionOrder` chooses the cached block to evict.

    A held block can be found before its content is computed, so that sequences that arrive together share it. It then
    has one writer. Other holders read it once `writer` is None, or claim it if that is `NO_WRITER`.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        if blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks and a block size above 0, not {blocks} and {block_size}")
        self.blocks = blocks
        self.block_size = block_size  # tokens
        self._references = [0] * blocks
        self._unused = list(range(blocks))  # last in, first out, so that the memory in use stays small
        self._cached = EvictionOrder(blocks)
        self._block_by_hash: dict[bytes, int] = {}
        self._hash_by_block: dict[int, bytes] = {}
        self._writers: dict[int, int] = {}  # of blocks that are announced and not yet published
        self._cache_changes: dict[bytes, bool] = {}  # by hash, since the last `pop_cache_changes`: True if cached

    def __repr__(self) -> str:
        return f"<BlockPool {self.used}/{self.blocks} used, {self.cached} cached>"

    @property
    def free(self) -> int:
        return len(self._unused) + len(self._cached)

    @property
    def used(self) -> int:
        return self.blocks - self.free

    @property
    def cached(self) -> int:
        return len(self._cached)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def find_prefix(self, hashes: Iterable[bytes]) -> list[int]:
        """Return the blocks of the longest known prefix of `hashes`. Takes no reference."""
        found = []
        for block_hash in hashes:
            block = self._block_by_hash.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def allocate(self, shared: Sequence[int], new_blocks: int, *, min_free: int = 0) -> list[int] | None:
        """Return a block table: the `shared` blocks that `find_prefix` returned, then new ones.

        Return None, and take no block, if fewer than `min_free` blocks would stay free.
        """
        revived = sum(1 for block in shared if not self._references[block])
        if self.free - revived - new_blocks < min_free:
            return None
        for block in shared:
            self._cached.on_reused(block)
            self._references[block] += 1
        return [*shared, *(self._pop_free() for _ in range(new_blocks))]

    def extend(self, table: list[int]) -> bool:
        """Add one block to `table`. Return False if none is free."""
        if not self.free:
            return False
        table.append(self._pop_free())
        return True

    def announce(self, block: int, block_hash: bytes, writer: int) -> None:
        """Make a held block findable before `writer` has computed its content. The first block with a hash keeps it."""
        if block_hash not in self._block_by_hash and block not in self._hash_by_block:
            self._block_by_hash[block_hash] = block
            self._hash_by_block[block] = block_hash
            self._writers[block] = writer
            self._cached.on_published(block, block_hash)

    def publish(self, block: int, block_hash: bytes, *, is_reported: bool = True) -> None:
        """Make a held, full block findable, announced or not. The first block with a hash keeps it."""
        self.announce(block, block_hash, NO_WRITER)
        self._writers.pop(block, None)
        if is_reported:
            self._cache_changes[block_hash] = True

    def writer(self, block: int) -> int | None:
        """Sequence that computes the block's content; None once it is published."""
        return self._writers.get(block)

    def claim(self, block: int, writer: int) -> None:
        self._writers[block] = writer

    def release(self, table: list[int], writer: int = NO_WRITER) -> int:
        """Empty the table of `writer` and return the number of blocks that became free."""
        freed = 0
        # Last block first, so that the end of a chain is evicted before its beginning, without which it has no use.
        for block in reversed(table):
            self._references[block] -= 1
            if not self._references[block]:
                self._return_block(block)
                freed += 1
            elif self._writers.get(block) == writer:
                self._writers[block] = NO_WRITER
        table.clear()
        return freed

    def pop_cache_changes(self) -> dict[bytes, bool]:
        """Return the hashes that were published with `is_reported` (True) or evicted (False) since the last call."""
        changes, self._cache_changes = self._cache_changes, {}
        return changes

    def _pop_free(self) -> int:
        if self._unused:
            block = self._unused.pop()
        else:
            block = self._cached.pop()
            block_hash = self._hash_by_block[block]
            self._cache_changes[block_hash] = False
            self._cached.remember(block_hash)
            self._drop_hash(block)
        self._references[block] = 1
        return block

    def _drop_hash(self, block: int) -> None:
        del self._block_by_hash[self._hash_by_block.pop(block)]

    def _return_block(self, block: int) -> None:
        if self._writers.pop(block, None) is not None:
            self._drop_hash(block)
        if block in self._hash_by_block:
            self._cached.add(block)
        else:
            self._cached.forget(block)
            self._unused.append(block)
