"""One table of a scenario file: typed fields with ranges, and errors that name the path of a field."""

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from penstock.simulator.errors import ScenarioError

Section = TypeVar("Section")
ReadFn = Callable[["ScenarioTable"], Section]


class ScenarioTable:
    """One table of the file. Records the fields that are read, so that unknown and misspelt fields are rejected."""

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
        """Return a finite number in the given range; the field is required if no default is given."""
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
            expected = f"one of {', '.join(allowed)}" if allowed else "text"
            raise ScenarioError(self.path_of(name), f"must be {expected}, not {value!r}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise ScenarioError(self.path_of(name), f"must be true or false, not {value!r}")
        return value

    def section(self, name: str, read: ReadFn[Section]) -> Section:
        """Read a nested table and reject its unknown fields; a missing table is empty."""
        return ScenarioTable(self._value(name, {}), self.path_of(name)).read(read)

    def sections(self, name: str, read: ReadFn[Section]) -> tuple[Section, ...]:
        """Read a list of tables; a missing list is empty."""
        values = self._value(name, [])
        if not isinstance(values, list):
            raise ScenarioError(self.path_of(name), "must be a list of tables")
        tables = (ScenarioTable(each, f"{self.path_of(name)}[{place}]") for place, each in enumerate(values))
        return tuple(table.read(read) for table in tables)

    def read(self, read: ReadFn[Section]) -> Section:
        """Read this table and reject its unknown fields."""
        section = read(self)
        self.check_unknown()
        return section

    def numbers(self, name: str, *, minimum: float) -> tuple[float, ...]:
        values = self._value(name, [])
        if not isinstance(values, list):
            raise ScenarioError(self.path_of(name), "must be a list of numbers")
        places = ScenarioTable({str(place): each for place, each in enumerate(values)}, self.path_of(name))
        return tuple(places.number(str(place), minimum=minimum, is_exclusive=True) for place in range(len(values)))

    def check_unknown(self) -> None:
        """Raise ScenarioError for the first field that has not been read."""
        for name in self._values:
            if name not in self._read_fields:
                raise ScenarioError(
                    self.path_of(name), f"is unknown; the known fields are {', '.join(sorted(self._read_fields))}"
                )

    def _value(self, name: str, default: object) -> Any:
        self._read_fields.add(name)
        value = self._values.get(name, default)
        if value is None:
            raise ScenarioError(self.path_of(name), "is missing")
        return value
