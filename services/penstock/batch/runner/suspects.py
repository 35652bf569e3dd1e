"""Lines whose runs were lost again and again. Pure.

One of them may be the cause, and the others ran beside it. Fewer of them run on one edge at a time the more often they
were lost, so that the cause is lost alone in the end, and the others are answered.
"""

from collections import Counter

MAX_LOST_RUNS = 5  # of one line; then it is an error
FIRST_SUSPECT = 2  # lost runs of a line from which it is a suspect: one loss is the restart of an edge
GROUP_FACTOR = 4  # by which a group is smaller after each loss; the last one is a line alone


class Suspects:
    """The suspects that are in the mesh, by edge."""

    def __init__(self) -> None:
        self._on_edge: dict[str, Counter[int]] = {}  # by lost runs

    def may_join(self, edge: str, lost_runs: int) -> bool:
        """Return whether a line may start on an edge beside the suspects that are there."""
        if lost_runs < FIRST_SUSPECT:
            return True
        present = self._on_edge.get(edge, Counter[int]())
        most = max([lost_runs, *present])
        group: int = GROUP_FACTOR ** (MAX_LOST_RUNS - 1 - most)
        return present.total() < group

    def add(self, edge: str, lost_runs: int) -> None:
        if lost_runs >= FIRST_SUSPECT:
            self._on_edge.setdefault(edge, Counter())[lost_runs] += 1

    def remove(self, edge: str, lost_runs: int) -> None:
        if lost_runs < FIRST_SUSPECT:
            return
        present = self._on_edge[edge]
        present[lost_runs] -= 1
        if not present[lost_runs]:
            del present[lost_runs]
        if not present:
            del self._on_edge[edge]
