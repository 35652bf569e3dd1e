"""Options of the proof of regions."""

from dataclasses import dataclass

from penstock.local_mesh.regions import ROUND_TRIP_S

PARTS = ("kill", "overload", "drain", "residency", "cut")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionsOptions:
    parts: tuple[str, ...] = PARTS
    streams: int = 64  # of kill and drain
    tokens: int = 160  # of an answer of kill and drain, at most
    seconds: float = 60.0  # of each load of overload that are judged
    cut_seconds: float = 60.0
    prompts: int = 10_000  # of the tenant of residency, at least
    region_delay: float = ROUND_TRIP_S * 1e3  # ms of a round trip between the regions
    seed: int = 0

    @property
    def round_trip_s(self) -> float:
        return self.region_delay / 1e3
