"""The points of a comparison: load, pace of the engine, and the time for which each is measured."""

from collections.abc import Mapping
from dataclasses import dataclass

FASTEST_STEP_MS = 0.05  # of the simulated engine; the mock worker then sends as fast as sockets accept


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPoint:
    name: str
    step_ms: float  # between two tokens of a stream
    tokens: int  # of each answer
    rate: int = 0  # requests/s; 0: a closed loop
    concurrent: int = 0  # requests at once in a closed loop
    is_stream: bool = True
    is_session: bool = False  # over one gRPC stream, for Penstock alone
    seconds: float = 2.0  # of the measured window

    @property
    def warmup_s(self) -> float:
        """Time before the window, in which the first answers end."""
        return 0.7 + self.tokens * self.step_ms / 1e3


POINTS: Mapping[str, BenchPoint] = {
    point.name: point
    for point in (
        BenchPoint(name="low", step_ms=5.0, rate=10, tokens=8, seconds=6.0),
        BenchPoint(name="light1", step_ms=20.0, rate=20, tokens=1, seconds=4.0),
        BenchPoint(name="light65", step_ms=20.0, rate=20, tokens=65, seconds=4.0),
        BenchPoint(name="loaded", step_ms=10.0, concurrent=64, tokens=64, seconds=2.6),
        BenchPoint(name="session64", step_ms=10.0, concurrent=64, tokens=64, is_session=True, seconds=2.6),
        BenchPoint(name="session512", step_ms=10.0, concurrent=64, tokens=512, is_session=True, seconds=5.2),
        BenchPoint(name="max1", step_ms=FASTEST_STEP_MS, concurrent=64, tokens=1),
        BenchPoint(name="max64", step_ms=FASTEST_STEP_MS, concurrent=64, tokens=64),
        BenchPoint(name="max256", step_ms=FASTEST_STEP_MS, concurrent=64, tokens=256),
        BenchPoint(name="json", step_ms=FASTEST_STEP_MS, concurrent=64, tokens=1, is_stream=False),
    )
}
