"""Holds: requests that wait at the edge for the first worker of their model, within bounds. Pure.

Without a worker, the edge has no tokenizer for the model, so that the queue cannot take a ticket. The number of held
requests is reported to the queue instead, as demand for a worker.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.chassis.errors import Unavailable

MIN_PREDICTED_WAIT_S = 1.0  # s; also once a worker loads for longer than expected


class HoldLimits(NamedTuple):
    """Bounds of one route."""

    seconds: float  # longest wait
    requests: int  # that wait at this edge
    load_time: float  # s from the start of a worker until it serves


@dataclass(slots=True)
class MissingModel:
    """A model that requests wait for."""

    load_time: float  # s
    since: float  # s; time of the first request
    wanted_until: float  # s; a refused request also needs a worker, for the client that sends it again
    requests: int = 0

    def expected(self, now: float) -> float:
        """Return the s until a worker is expected."""
        return max(MIN_PREDICTED_WAIT_S, self.since + self.load_time - now)


@dataclass(slots=True)
class ModelHolds:
    """The held requests of an edge, by the name of the missing model."""

    held_total: int = 0  # requests so far
    refused_total: int = 0
    _missing: dict[str, MissingModel] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        """Requests that wait now."""
        return sum(each.requests for each in self._missing.values())

    def admit(self, model: str, limits: HoldLimits, time_left: float, now: float) -> float:
        """Hold a request with `time_left` s; return the s until a worker is expected.

        Raises Unavailable / NO_WORKER with this time if the request must not wait, or not for so long.
        """
        missing = self._missing.get(model)
        if missing is None:
            missing = self._missing[model] = MissingModel(limits.load_time, now, now)
        missing.wanted_until = max(missing.wanted_until, now + limits.load_time)
        expected = missing.expected(now)
        if missing.requests >= limits.requests:
            raise self._refusal(model, f"{missing.requests} requests wait for a worker already", expected)
        if min(limits.seconds, time_left) < expected:
            raise self._refusal(model, f"a request may wait {min(limits.seconds, time_left):.0f} s for one", expected)
        missing.requests += 1
        self.held_total += 1
        return expected

    def expected(self, model: str, limits: HoldLimits, now: float) -> float:
        """Return the s until a worker is expected, for a request that would be held now."""
        missing = self._missing.get(model)
        return missing.expected(now) if missing else limits.load_time

    def timed_out(self, model: str, now: float) -> Unavailable:
        """Return the error of a held request that has waited for as long as it may."""
        return self._refusal(model, "the request has waited for as long as it may", self._missing[model].expected(now))

    def release(self, model: str) -> None:
        """A held request waits no longer."""
        if missing := self._missing.get(model):
            missing.requests -= 1

    def on_served(self, model: str) -> None:
        """A worker serves the model. Its held requests are released one by one."""
        if missing := self._missing.get(model):
            missing.wanted_until = missing.since

    def wanted(self, now: float) -> dict[str, int]:
        """Return the requests that need workers, by model; at least 1 for a model whose requests were refused."""
        for model, missing in list(self._missing.items()):
            if not missing.requests and missing.wanted_until <= now:
                del self._missing[model]
        return {model: max(1, missing.requests) for model, missing in self._missing.items()}

    def _refusal(self, model: str, cause: str, expected: float) -> Unavailable:
        self.refused_total += 1
        text = f"no worker serves {model!r} at present, and {cause}; a worker is expected in {expected:.0f} s"
        return Unavailable(text, reason="NO_WORKER", retry_after=expected, metadata={"model": model})
