"""The operators' state of regions: which are drained or return from a drain, and how many calls others get.

Knows no clock and no file. All replicas of routing read the same state, and the steps of a return follow from the time
of the command, so that no replica has to go on with what another one began.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from penstock.chassis.config import check_region

RETURN_SHARES: Final = (25, 50, 75)  # percent of its calls that a restored region gets, each for one step; then all
ALL: Final = 100  # percent
MAX_REGIONS: Final = 64  # in a file; more are a mistake


class RegionStateInvalid(ValueError):
    """The text is not a state of regions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionState:
    drained: frozenset[str] = frozenset()
    restore_times: Mapping[str, float] = field(default_factory=dict)  # Unix s of the last restore, by region
    weights: Mapping[str, int] = field(default_factory=dict)  # percent of new calls that go to another region first

    def share(self, region: str, now: float, step_s: float) -> int:
        """Return the percent of its calls that `region` gets: 0 if it is drained, less than 100 while it returns.

        `now` is Unix time. A `now` before the time of the restore counts as the first step.
        """
        if region in self.drained:
            return 0
        if region not in self.restore_times:
            return ALL
        steps = max(0.0, now - self.restore_times[region]) / step_s
        return RETURN_SHARES[int(steps)] if steps < len(RETURN_SHARES) else ALL

    def with_drained(self, region: str) -> Self:
        restored = {name: at for name, at in self.restore_times.items() if name != region}
        return replace(self, drained=self.drained | {region}, restore_times=restored)

    def with_restored(self, region: str, now: float) -> Self:
        """Return the state in which `region` begins to return at `now`. A region that is not drained stays as it is."""
        if region not in self.drained:
            return self
        return replace(self, drained=self.drained - {region}, restore_times={**self.restore_times, region: now})

    def with_weight(self, region: str, percent: int) -> Self:
        """Raises ValueError unless all weights are 0 to 100 and their sum is at most 100."""
        weights = {name: weight for name, weight in self.weights.items() if name != region}
        changed = replace(self, weights={**weights, region: percent} if percent else weights)
        changed.check()
        return changed

    def check(self) -> None:
        """Raise ValueError unless all weights are 0 to 100 and their sum is at most 100."""
        weights = self.weights.values()
        if not all(0 <= weight <= ALL for weight in weights) or sum(weights) > ALL:
            raise ValueError(f"the weights of regions must be 0 to {ALL} % and have a sum of at most {ALL} %")

    def text(self) -> str:
        """Return the state as JSON, equal for equal states."""
        content = {
            "drained": sorted(self.drained),
            "restore_times": dict(sorted(self.restore_times.items())),
            "weights": dict(sorted(self.weights.items())),
        }
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse what `text` returns; absent parts are empty. Raises RegionStateInvalid."""
        try:
            content = _content(text)
            state = cls(
                drained=frozenset(_names(content.get("drained", []))),
                restore_times=_numbers(content.get("restore_times", {}), float),
                weights=_numbers(content.get("weights", {}), int),
            )
            state.check()
        except ValueError as error:
            raise RegionStateInvalid(f"the state of regions is not valid: {error}") from error
        return state


def _content(text: str) -> dict[str, Any]:
    content = json.loads(text)
    if not isinstance(content, dict) or content.keys() - {"drained", "restore_times", "weights"}:
        raise ValueError("it must be an object with drained, restore_times and weights")
    return content


def _names(value: Any) -> list[str]:
    if not isinstance(value, list | dict) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{value!r} does not name regions")
    if len(value) > MAX_REGIONS:
        raise ValueError(f"it names more than {MAX_REGIONS} regions")
    for each in value:
        check_region("each name", each)
    return list(value)


def _numbers(value: Any, kind: type[float] | type[int]) -> dict[str, Any]:
    """Return the numbers by region."""
    names = _names(value) if isinstance(value, dict) else _names(None)
    numbers = {name: value[name] for name in names}
    if not all(isinstance(each, kind | int) and math.isfinite(each) for each in numbers.values()):
        raise ValueError(f"{value!r} has values that are not numbers")
    return numbers
