"""Version balancer: divides the requests for one name between the versions that workers serve. Pure."""

from collections.abc import Mapping


class VersionBalancer:
    """Chooses each version in proportion to its weight, spread evenly over time.

    With the capacity of a version as its weight, traffic moves as workers are replaced, and the first new worker does
    not receive all requests. A rollback is the same in the other direction, so versions need no order.
    Source: smooth weighted round robin, as in nginx.
    """

    def __init__(self) -> None:
        self._due: dict[str, int] = {}

    def choose(self, weights: Mapping[str, int]) -> str:
        """Return the version of the next request. `weights`: at least one, all above 0."""
        if len(weights) == 1:
            return next(iter(weights))
        due = {version: self._due.get(version, 0) + weight for version, weight in weights.items()}
        chosen = max(due, key=lambda version: (due[version], version))
        due[chosen] -= sum(weights.values())
        self._due = due
        return chosen
