"""Eviction order of cached KV blocks: blocks that were asked for again are kept longer. Knows no hashes' meaning.

A segmented LRU (Karedy, Love and Wherry 1994) with the names of recently evicted blocks (as in 2Q, Johnson and Shasha
1994): most prompts are never sent again, and must not displace those that are.
"""

from collections import OrderedDict

PROTECTED_SHARE = 0.5  # of all blocks
REMEMBERED_SHARE = 1.0  # names of evicted blocks, as a share of all blocks


class EvictionOrder:
    """Blocks without a reference. A block is protected if its content was used again since it was cached or evicted.

    If a block is protected, all blocks before it in its chain are: they are used with it. So the end of a chain is
    evicted before its beginning, as long as the end of a chain is added first.
    """

    def __init__(self, blocks: int) -> None:
        self._max_protected = int(blocks * PROTECTED_SHARE)
        self._max_remembered = int(blocks * REMEMBERED_SHARE)
        self._probation: OrderedDict[int, None] = OrderedDict()  # least recently used first, like the next
        self._protected: OrderedDict[int, None] = OrderedDict()
        self._reused: set[int] = set()  # held or protected blocks
        self._evicted: OrderedDict[bytes, None] = OrderedDict()  # names

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def on_reused(self, block: int) -> None:
        """A sequence takes a cached or held block for its content."""
        if block in self._reused:
            self._protected.pop(block, None)
            return
        self._probation.pop(block, None)
        self._reused.add(block)

    def on_published(self, block: int, name: bytes) -> None:
        """A held block has its content. If that was evicted recently, it is used again."""
        if name in self._evicted:
            del self._evicted[name]
            self._reused.add(block)

    def forget(self, block: int) -> None:
        """A block lost its content without an eviction."""
        self._reused.discard(block)

    def add(self, block: int) -> None:
        """Add a block that has lost its last reference, as the most recently used one."""
        if block not in self._reused:
            self._probation[block] = None
            return
        self._protected[block] = None
        while len(self._protected) > self._max_protected:
            demoted, _ = self._protected.popitem(last=False)
            self._reused.discard(demoted)
            self._probation[demoted] = None

    def pop(self) -> int:
        """Remove and return the block to evict. There must be one. The caller must then call `remember`."""
        if self._probation:
            return self._probation.popitem(last=False)[0]
        block, _ = self._protected.popitem(last=False)
        self._reused.discard(block)
        return block

    def remember(self, name: bytes) -> None:
        self._evicted[name] = None  # not in it yet, as `on_published` removes it
        if len(self._evicted) > self._max_remembered:
            self._evicted.popitem(last=False)
