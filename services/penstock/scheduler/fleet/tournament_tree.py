"""Tournament tree: finds the least loaded worker with enough free tokens in O(log n)."""

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf

MAX_SEARCH_VISITS = 256  # nodes per search; then the worker with the most free tokens is returned
RankedLoad = tuple[float, str]  # load and name, lower first; the name breaks ties, so that runs are repeatable
EMPTY_LEAF: RankedLoad = (inf, "")


class TournamentTree:
    """Each node holds the least load and the most free tokens of the workers below it.

    A change costs O(log n). A search visits nodes with lower loads first and skips nodes with too few free tokens. It
    costs O(log n) if the least loaded workers have enough free tokens, and at most MAX_SEARCH_VISITS visits.
    """

    def __init__(self) -> None:
        self._leaves = 1
        self._load: list[RankedLoad] = [EMPTY_LEAF] * 2  # node i has the children 2i and 2i+1
        self._tokens: list[int] = [0] * 2  # free tokens
        self._node_by_name: dict[str, int] = {}
        self._name_by_node: dict[int, str] = {}
        self._free_leaves: list[int] = [1]

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
        """Yield names with at least `free_tokens`, least load first within MAX_SEARCH_VISITS visits."""
        loads, tokens, leaves = self._load, self._tokens, self._leaves
        if tokens[1] < free_tokens or loads[1] == EMPTY_LEAF:
            return
        frontier, visits = [(loads[1], 1)], 0
        while frontier and visits < MAX_SEARCH_VISITS:
            _, node = heappop(frontier)
            while visits < MAX_SEARCH_VISITS:
                visits += 1
                if node >= leaves:
                    yield self._name_by_node[node]
                    break
                near, far = 2 * node, 2 * node + 1
                if loads[far] < loads[near]:
                    near, far = far, near
                if tokens[far] >= free_tokens and loads[far] != EMPTY_LEAF:
                    heappush(frontier, (loads[far], far))
                if tokens[near] < free_tokens or loads[near] == EMPTY_LEAF:
                    break
                node = near  # the first of the frontier, as it has the load of its parent
        if visits < MAX_SEARCH_VISITS:
            return
        if tokens[1]:  # an empty leaf has no free tokens, so the maximum belongs to a worker
            yield self._name_with_most_tokens()

    def _name_with_most_tokens(self) -> str:
        node = 1
        while node < self._leaves:
            node = 2 * node + (self._tokens[2 * node + 1] > self._tokens[2 * node])
        return self._name_by_node[node]

    def _set(self, node: int, load: RankedLoad, free_tokens: int) -> None:
        loads, tokens = self._load, self._tokens
        loads[node], tokens[node] = load, free_tokens
        while node > 1:
            node //= 2
            left, right = 2 * node, 2 * node + 1
            load = min(loads[left], loads[right])
            free_tokens = max(tokens[left], tokens[right])
            if loads[node] == load and tokens[node] == free_tokens:
                return
            loads[node], tokens[node] = load, free_tokens

    def _grow(self) -> None:
        before = [(name, *self._load_and_tokens(name)) for name in self._node_by_name]
        self._leaves *= 2
        self._load, self._tokens = [EMPTY_LEAF] * (2 * self._leaves), [0] * (2 * self._leaves)
        self._node_by_name, self._name_by_node = {}, {}
        self._free_leaves = list(range(2 * self._leaves - 1, self._leaves - 1, -1))
        for name, load, free_tokens in before:
            self.put(name, load, free_tokens)

    def _load_and_tokens(self, name: str) -> tuple[float, int]:
        node = self._node_by_name[name]
        return self._load[node][0], self._tokens[node]
