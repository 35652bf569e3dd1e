"""One table of a scenario file, read field by field; what is wrong is said with the field's full path."""

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from penstock.simulator.errors import ScenarioError

T = TypeVar("T")


class ScenarioTable:
    """Fields are taken out one by one, so that `done` finds what nobody asked for: a misspelt field never passes."""

    def __init__(self, values: object, path: str = "") -> None:
        if not isinstance(values, dict):
            raise ScenarioError(path, f"must be a table, not {values!r}")
        self._values: dict[str, Any] = dict(values)
        self._read_fields: set[str] = set()
        self.path = path

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def path_of(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def number(
        self,
        name: str,
        default: float | None = None,
        *,
        minimum: float = 0.0,
        maximum: float = math.inf,
        is_exclusive: bool = False,
    ) -> float:
        """Return a finite number from `low` (with `above`: greater than it) to `high`; no default: it is required."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ScenarioError(self.path_of(name), f"must be a number, not {value!r}")
        if value < minimum or value > maximum or (is_exclusive and value == minimum):
            bound = f"above {minimum:g}" if is_exclusive else f"at least {minimum:g}"
            raise ScenarioError(
                self.path_of(name), f"must be {bound}{'' if maximum == math.inf else f', at most {maximum:g}'}"
            )
        return float(value)

    def count(self, name: str, default: int | None = None, *, minimum: int = 0, maximum: int = 2**53) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise ScenarioError(self.path_of(name), f"must be a whole number from {minimum} up, not {value!r}")
        return value

    def text(self, name: str, default: str | None = None, *, choices: Iterable[str] = ()) -> str:
        value, allowed = self._value(name, default), tuple(choices)
        if not isinstance(value, str) or (allowed and value not in allowed):
            wanted = f"one of {', '.join(allowed)}" if allowed else "text"
            raise ScenarioError(self.path_of(name), f"must be {wanted}, not {value!r}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise ScenarioError(self.path_of(name), f"must be true or false, not {value!r}")
        return value

    def table(self, name: str) -> "ScenarioTable":
        """Return a table within this one; one that is not given is empty."""
        return ScenarioTable(self._value(name, {}), self.path_of(name))

    def tables(self, name: str, read: Callable[["ScenarioTable"], T]) -> tuple[T, ...]:
        values = self._value(name, [])
        if not isinstance(values, list):
            raise ScenarioError(self.path_of(name), "must be a list of tables")
        return tuple(
            _read_table(ScenarioTable(each, f"{self.path_of(name)}[{place}]"), read)
            for place, each in enumerate(values)
        )

    def numbers(self, name: str, *, minimum: float) -> tuple[float, ...]:
        values = self._value(name, [])
        if not isinstance(values, list):
            raise ScenarioError(self.path_of(name), "must be a list of numbers")
        places = ScenarioTable({str(place): each for place, each in enumerate(values)}, self.path_of(name))
        return tuple(places.number(str(place), minimum=minimum, is_exclusive=True) for place in range(len(values)))

    def check_unknown(self) -> None:
        """Raise ScenarioError for the first field that nobody has asked for."""
        for name in self._values:
            if name not in self._read_fields:
                raise ScenarioError(self.path_of(name), f"is unknown; known are {', '.join(sorted(self._read_fields))}")

    def _value(self, name: str, default: object) -> Any:
        self._read_fields.add(name)
        value = self._values.get(name, default)
        if value is None:
            raise ScenarioError(self.path_of(name), "is missing")
        return value


def _read_table(table: ScenarioTable, read: Callable[[ScenarioTable], T]) -> T:
    found = read(table)
    table.check_unknown()
    return found
