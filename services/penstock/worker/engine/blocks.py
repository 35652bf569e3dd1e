"""The KV blocks of one engine: who holds which, which content is still worth keeping. Knows no tensors."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

NOBODY = -1  # writer of a block whose content was to come and whose writer has left


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
        self._block_of: dict[bytes, int] = {}
        self._name_of: dict[int, bytes] = {}
        self._writers: dict[int, int] = {}  # of named blocks whose content is still to come
        self._news: dict[bytes, bool] = {}  # names that can be found since they were last asked for, or no more

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

    def find(self, names: Iterable[bytes]) -> list[int]:
        """Blocks of the longest known beginning of `names`. Takes no reference."""
        found = []
        for name in names:
            block = self._block_of.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def open(self, shared: Sequence[int], fresh: int, *, keep: int = 0) -> list[int] | None:
        """Return a block table: `shared` blocks as just found, then `fresh` new ones.

        None, and nothing taken, when fewer than `keep` blocks would stay free.
        """
        revived = sum(1 for block in shared if not self._references[block])
        if self.free - revived - fresh < keep:
            return None
        for block in shared:
            self._cached.pop(block, None)
            self._references[block] += 1
        return [*shared, *(self._take() for _ in range(fresh))]

    def extend(self, table: list[int]) -> bool:
        """Add one block to `table`; False when none is free."""
        if not self.free:
            return False
        table.append(self._take())
        return True

    def announce(self, block: int, name: bytes, writer: int) -> None:
        """Let a held block be found whose content `writer` is going to compute. The first block of a name keeps it."""
        if name not in self._block_of and block not in self._name_of:
            self._block_of[name] = block
            self._name_of[block] = name
            self._writers[block] = writer

    def publish(self, block: int, name: bytes, *, is_news: bool = True) -> None:
        """Make the content of a held, full block findable, announced or not. The first block of a name keeps it."""
        self.announce(block, name, NOBODY)
        self._writers.pop(block, None)
        if is_news:
            self._news[name] = True

    def writer(self, block: int) -> int | None:
        """Who is to fill the block; None once it is full."""
        return self._writers.get(block)

    def claim(self, block: int, writer: int) -> None:
        self._writers[block] = writer

    def release(self, table: list[int], writer: int = NOBODY) -> int:
        """Empty the table of `writer` and return how many blocks became free by it."""
        freed = 0
        # Last block first: a chain without its beginning is of no use, so its end is to be given up before it.
        for block in reversed(table):
            self._references[block] -= 1
            if not self._references[block]:
                self._retire(block)
                freed += 1
            elif self._writers.get(block) == writer:
                self._writers[block] = NOBODY
        table.clear()
        return freed

    def take_news(self) -> dict[bytes, bool]:
        """Return the names whose content came, if that was to be news, or was given up since the last call."""
        news, self._news = self._news, {}
        return news

    def _take(self) -> int:
        if self._unused:
            block = self._unused.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._news[self._name_of[block]] = False
            self._forget(block)
        self._references[block] = 1
        return block

    def _forget(self, block: int) -> None:
        del self._block_of[self._name_of.pop(block)]

    def _retire(self, block: int) -> None:
        if self._writers.pop(block, None) is not None:
            self._forget(block)
        if block in self._name_of:
            self._cached[block] = None
        else:
            self._unused.append(block)
