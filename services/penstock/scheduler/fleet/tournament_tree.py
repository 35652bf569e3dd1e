"""Which of many workers is the least loaded that can take a ticket, without looking at each."""

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf

MAX_SEARCH_VISITS = 256  # nodes of one search, after which whoever has most room comes next
RankedLoad = tuple[float, str]  # lower comes first; the name settles ties, so that runs repeat
EMPTY_LEAF: RankedLoad = (inf, "")


class TournamentTree:
    """A tournament tree: every node knows the least load and the most room below it.

    A change costs O(log n). A search goes best first and skips what has too little room below; it takes O(log n) while
    the least loaded have room, and `VISITS` at most.
    """

    def __init__(self) -> None:
        self._leaves = 1
        self._load: list[RankedLoad] = [EMPTY_LEAF] * 2  # node i has the children 2i and 2i+1
        self._tokens: list[int] = [0] * 2  # tokens
        self._node_by_name: dict[str, int] = {}  # node, by name
        self._name_by_node: dict[int, str] = {}
        self._free_leaves: list[int] = [1]  # leaves

    def __len__(self) -> int:
        return len(self._node_by_name)

    @property
    def max_free_tokens(self) -> int:
        return self._tokens[1]

    def put(self, name: str, load: float, free_tokens: int) -> None:
        if name not in self._node_by_name:
            if not self._free_leaves:
                self._grow()
            node = self._node_by_name[name] = self._free_leaves.pop()
            self._name_by_node[node] = name
        self._set(self._node_by_name[name], (load, name), free_tokens)

    def remove(self, name: str) -> None:
        node = self._node_by_name.pop(name)
        del self._name_by_node[node]
        self._free_leaves.append(node)
        self._set(node, EMPTY_LEAF, 0)

    def search(self, free_tokens: int) -> Iterator[str]:
        """Yield those with so much room, least load first as far as the search goes."""
        loads, rooms, leaves = self._load, self._tokens, self._leaves
        if rooms[1] < free_tokens or loads[1] == EMPTY_LEAF:
            return
        ahead = [(loads[1], 1)]
        for _ in range(MAX_SEARCH_VISITS):
            if not ahead:
                return
            _, node = heappop(ahead)
            if node >= leaves:
                yield self._name_by_node[node]
                continue
            for child in (2 * node, 2 * node + 1):
                if rooms[child] >= free_tokens and loads[child] != EMPTY_LEAF:
                    heappush(ahead, (loads[child], child))
        if rooms[1]:  # as long as anybody has room, it is a worker that has most
            yield self._name_with_most_tokens()

    def _name_with_most_tokens(self) -> str:
        node = 1
        while node < self._leaves:
            node = 2 * node + (self._tokens[2 * node + 1] > self._tokens[2 * node])
        return self._name_by_node[node]

    def _set(self, node: int, load: RankedLoad, free_tokens: int) -> None:
        loads, rooms = self._load, self._tokens
        loads[node], rooms[node] = load, free_tokens
        while node > 1:
            node //= 2
            left, right = 2 * node, 2 * node + 1
            load = min(loads[left], loads[right])
            free_tokens = max(rooms[left], rooms[right])
            if loads[node] == load and rooms[node] == free_tokens:
                return
            loads[node], rooms[node] = load, free_tokens

    def _grow(self) -> None:
        before = [(name, *self._load_and_tokens(name)) for name in self._node_by_name]
        self._leaves *= 2
        self._load, self._tokens = [EMPTY_LEAF] * (2 * self._leaves), [0] * (2 * self._leaves)
        self._node_by_name, self._name_by_node = {}, {}
        self._free_leaves = list(range(2 * self._leaves - 1, self._leaves - 1, -1))
        for name, load, room in before:
            self.put(name, load, room)

    def _load_and_tokens(self, name: str) -> tuple[float, int]:
        node = self._node_by_name[name]
        return self._load[node][0], self._tokens[node]
