"""The KV blocks of one engine: who holds which, which content is still worth keeping. Knows no tensors."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

NO_WRITER = -1  # writer of a block whose content was to come and whose writer has left


class BlockPool:
    """A fixed number of KV blocks with reference counts and a prefix cache.

    A block is in exactly one of three states: held (counted references), cached (no reference, content named and
    findable) or unused. Cached and unused ones together are free: the least recently used content is given up first.

    A held block may be found before its content is there, so that what comes at the same time shares it too. It then
    has one writer; whoever else holds it reads it once `writer` is None, or claims it when that is `NOBODY`.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        if blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks and a block size above 0, not {blocks} and {block_size}")
        self.blocks = blocks
        self.block_size = block_size  # tokens
        self._references = [0] * blocks
        self._unused = list(range(blocks))  # last in, first out: memory in use stays small and warm
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._block_by_hash: dict[bytes, int] = {}
        self._hash_by_block: dict[int, bytes] = {}
        self._writers: dict[int, int] = {}  # of named blocks whose content is still to come
        self._cache_changes: dict[
            bytes, bool
        ] = {}  # names that can be found since they were last asked for, or no more

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
        """Blocks of the longest known beginning of `names`. Takes no reference."""
        found = []
        for name in hashes:
            block = self._block_by_hash.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def allocate(self, shared: Sequence[int], new_blocks: int, *, min_free: int = 0) -> list[int] | None:
        """Return a block table: `shared` blocks as just found, then `fresh` new ones.

        None, and nothing taken, when fewer than `keep` blocks would stay free.
        """
        revived = sum(1 for block in shared if not self._references[block])
        if self.free - revived - new_blocks < min_free:
            return None
        for block in shared:
            self._cached.pop(block, None)
            self._references[block] += 1
        return [*shared, *(self._pop_free() for _ in range(new_blocks))]

    def extend(self, table: list[int]) -> bool:
        """Add one block to `table`; False when none is free."""
        if not self.free:
            return False
        table.append(self._pop_free())
        return True

    def announce(self, block: int, block_hash: bytes, writer: int) -> None:
        """Let a held block be found whose content `writer` is going to compute. The first block of a name keeps it."""
        if block_hash not in self._block_by_hash and block not in self._hash_by_block:
            self._block_by_hash[block_hash] = block
            self._hash_by_block[block] = block_hash
            self._writers[block] = writer

    def publish(self, block: int, block_hash: bytes, *, is_reported: bool = True) -> None:
        """Make the content of a held, full block findable, announced or not. The first block of a name keeps it."""
        self.announce(block, block_hash, NO_WRITER)
        self._writers.pop(block, None)
        if is_reported:
            self._cache_changes[block_hash] = True

    def writer(self, block: int) -> int | None:
        """Who is to fill the block; None once it is full."""
        return self._writers.get(block)

    def claim(self, block: int, writer: int) -> None:
        self._writers[block] = writer

    def release(self, table: list[int], writer: int = NO_WRITER) -> int:
        """Empty the table of `writer` and return how many blocks became free by it."""
        freed = 0
        # Last block first: a chain without its beginning is of no use, so its end is to be given up before it.
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
        """Return the names whose content came, if that was to be news, or was given up since the last call."""
        news, self._cache_changes = self._cache_changes, {}
        return news

    def _pop_free(self) -> int:
        if self._unused:
            block = self._unused.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._cache_changes[self._hash_by_block[block]] = False
            self._drop_hash(block)
        self._references[block] = 1
        return block

    def _drop_hash(self, block: int) -> None:
        del self._block_by_hash[self._hash_by_block.pop(block)]

    def _return_block(self, block: int) -> None:
        if self._writers.pop(block, None) is not None:
            self._drop_hash(block)
        if block in self._hash_by_block:
            self._cached[block] = None
        else:
            self._unused.append(block)
