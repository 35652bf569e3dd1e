"""Which of many workers is the least loaded that can take a ticket, without looking at each."""

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf

VISITS = 256  # nodes of one search, after which whoever has most room comes next
Load = tuple[float, str]  # lower comes first; the name settles ties, so that runs repeat
NOBODY: Load = (inf, "")


class Ranking:
    """A tournament tree: every node knows the least load and the most room below it.

    A change costs O(log n). A search goes best first and skips what has too little room below; it takes O(log n) while
    the least loaded have room, and `VISITS` at most.
    """

    def __init__(self) -> None:
        self._leaves = 1
        self._load: list[Load] = [NOBODY] * 2  # node i has the children 2i and 2i+1
        self._room: list[int] = [0] * 2  # tokens
        self._place: dict[str, int] = {}  # node, by name
        self._name: dict[int, str] = {}
        self._free: list[int] = [1]  # leaves

    def __len__(self) -> int:
        return len(self._place)

    @property
    def most_room(self) -> int:
        return self._room[1]

    def put(self, name: str, load: float, room: int) -> None:
        if name not in self._place:
            if not self._free:
                self._grow()
            node = self._place[name] = self._free.pop()
            self._name[node] = name
        self._set(self._place[name], (load, name), room)

    def remove(self, name: str) -> None:
        node = self._place.pop(name)
        del self._name[node]
        self._free.append(node)
        self._set(node, NOBODY, 0)

    def search(self, room: int) -> Iterator[str]:
        """Yield those with so much room, least load first as far as the search goes."""
        loads, rooms, leaves = self._load, self._room, self._leaves
        if rooms[1] < room or loads[1] == NOBODY:
            return
        ahead = [(loads[1], 1)]
        for _ in range(VISITS):
            if not ahead:
                return
            _, node = heappop(ahead)
            if node >= leaves:
                yield self._name[node]
                continue
            for child in (2 * node, 2 * node + 1):
                if rooms[child] >= room and loads[child] != NOBODY:
                    heappush(ahead, (loads[child], child))
        if rooms[1]:  # as long as anybody has room, it is a worker that has most
            yield self._roomiest()

    def _roomiest(self) -> str:
        node = 1
        while node < self._leaves:
            node = 2 * node + (self._room[2 * node + 1] > self._room[2 * node])
        return self._name[node]

    def _set(self, node: int, load: Load, room: int) -> None:
        loads, rooms = self._load, self._room
        loads[node], rooms[node] = load, room
        while node > 1:
            node //= 2
            left, right = 2 * node, 2 * node + 1
            load = min(loads[left], loads[right])
            room = max(rooms[left], rooms[right])
            if loads[node] == load and rooms[node] == room:
                return
            loads[node], rooms[node] = load, room

    def _grow(self) -> None:
        before = [(name, *self._at(name)) for name in self._place]
        self._leaves *= 2
        self._load, self._room = [NOBODY] * (2 * self._leaves), [0] * (2 * self._leaves)
        self._place, self._name = {}, {}
        self._free = list(range(2 * self._leaves - 1, self._leaves - 1, -1))
        for name, load, room in before:
            self.put(name, load, room)

    def _at(self, name: str) -> tuple[float, int]:
        node = self._place[name]
        return self._load[node][0], self._room[node]
