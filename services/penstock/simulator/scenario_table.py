"""One table of a scenario file, read field by field; what is wrong is said with the field's full path."""

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from penstock.simulator.errors import ScenarioError

T = TypeVar("T")


class Table:
    """Fields are taken out one by one, so that `done` finds what nobody asked for: a misspelt field never passes."""

    def __init__(self, values: object, path: str = "") -> None:
        if not isinstance(values, dict):
            raise ScenarioError(path, f"must be a table, not {values!r}")
        self._values: dict[str, Any] = dict(values)
        self._known: set[str] = set()
        self.path = path

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def number(
        self, name: str, default: float | None = None, *, low: float = 0.0, high: float = math.inf, above: bool = False
    ) -> float:
        """Return a finite number from `low` (with `above`: greater than it) to `high`; no default: it is required."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ScenarioError(self.at(name), f"must be a number, not {value!r}")
        if value < low or value > high or (above and value == low):
            bound = f"above {low:g}" if above else f"at least {low:g}"
            raise ScenarioError(self.at(name), f"must be {bound}{'' if high == math.inf else f', at most {high:g}'}")
        return float(value)

    def count(self, name: str, default: int | None = None, *, low: int = 0, high: int = 2**53) -> int:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ScenarioError(self.at(name), f"must be a whole number from {low} up, not {value!r}")
        return value

    def text(self, name: str, default: str | None = None, *, among: Iterable[str] = ()) -> str:
        value, allowed = self._take(name, default), tuple(among)
        if not isinstance(value, str) or (allowed and value not in allowed):
            wanted = f"one of {', '.join(allowed)}" if allowed else "text"
            raise ScenarioError(self.at(name), f"must be {wanted}, not {value!r}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise ScenarioError(self.at(name), f"must be true or false, not {value!r}")
        return value

    def table(self, name: str) -> "Table":
        """Return a table within this one; one that is not given is empty."""
        return Table(self._take(name, {}), self.at(name))

    def tables(self, name: str, read: Callable[["Table"], T]) -> tuple[T, ...]:
        values = self._take(name, [])
        if not isinstance(values, list):
            raise ScenarioError(self.at(name), "must be a list of tables")
        return tuple(_read(Table(each, f"{self.at(name)}[{place}]"), read) for place, each in enumerate(values))

    def numbers(self, name: str, *, above: float) -> tuple[float, ...]:
        values = self._take(name, [])
        if not isinstance(values, list):
            raise ScenarioError(self.at(name), "must be a list of numbers")
        places = Table({str(place): each for place, each in enumerate(values)}, self.at(name))
        return tuple(places.number(str(place), low=above, above=True) for place in range(len(values)))

    def done(self) -> None:
        """Raise ScenarioError for the first field that nobody has asked for."""
        for name in self._values:
            if name not in self._known:
                raise ScenarioError(self.at(name), f"is unknown; known are {', '.join(sorted(self._known))}")

    def _take(self, name: str, default: object) -> Any:
        self._known.add(name)
        value = self._values.get(name, default)
        if value is None:
            raise ScenarioError(self.at(name), "is missing")
        return value


def _read(table: Table, read: Callable[[Table], T]) -> T:
    found = read(table)
    table.done()
    return found
