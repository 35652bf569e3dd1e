"""Lists that the GPU keeps copies of across steps, so that a step sends only their new elements."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Resident:
    """A list and its row on the GPU."""

    values: Sequence[int]  # referenced, so that no other list gets its identity
    row: int
    sent: int = 0  # leading elements that the row has; 0: the row has those of another list
    last_step: int = 0

    def unsent(self) -> Sequence[int]:
        return self.values[self.sent :]


class ResidentLists:
    """Assigns one row each to at most `rows` lists of a step. A list is known by its identity and only grows.

    The row of a list stays its own until other lists need it; the list is then sent again when it returns.
    """

    def __init__(self, rows: int) -> None:
        self._free = list(range(rows))
        self._residents: dict[int, Resident] = {}  # by the identity of the list
        self._step = 0

    def __repr__(self) -> str:
        return f"<ResidentLists {len(self._residents)} lists, {len(self._free)} rows free>"

    def assign(self, lists: Sequence[Sequence[int]]) -> list[Resident]:
        """Return the row of each list. The caller copies the elements that were not sent, and then sets `sent`."""
        self._step += 1
        known = self._residents
        new = []
        for values in lists:
            resident = known.get(id(values))
            if resident is None:
                new.append(values)
            else:
                resident.last_step = self._step
        if len(new) > len(self._free):
            self._evict()
        for values in new:
            known[id(values)] = Resident(values, self._free.pop(), last_step=self._step)
        return [known[id(values)] for values in lists]

    def _evict(self) -> None:
        """Take the rows of all lists that are not in this step. It happens once in many steps, so it may take all."""
        for key, resident in list(self._residents.items()):
            if resident.last_step != self._step:
                self._free.append(resident.row)
                del self._residents[key]
