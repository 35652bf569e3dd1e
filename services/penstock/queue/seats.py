"""The schedulers of a shard: what each can place, and how many tickets each may be offered."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.mesh.v1.ticket_pb2 import CatalogEntry


@dataclass(slots=True)
class Credit:
    """Offers a scheduler may still be made for one model."""

    tickets: int = 0
    max_tokens: int = 0  # largest ticket it can place now; 0: no bound known
    tokens_per_second: float = 0.0  # measured by its workers; 0: unknown


@dataclass(slots=True)
class Seat:
    """One scheduler."""

    catalog: dict[str, CatalogEntry] = field(default_factory=dict)
    credits: dict[str, Credit] = field(default_factory=dict)
    offered: set[str] = field(default_factory=set)  # ticket ids


class Seats(dict[str, Seat]):
    """All schedulers by stream."""

    def serving(self, model: str) -> Iterator[tuple[str, Seat]]:
        return ((key, seat) for key, seat in self.items() if model in seat.catalog)

    def with_credit(self, model: str) -> tuple[str, Credit] | None:
        """The scheduler with most credit for `model`."""
        found = [(key, seat.credits[model]) for key, seat in self.items() if model in seat.credits]
        key, credit = max(found, key=lambda pair: pair[1].tickets, default=("", Credit()))
        return (key, credit) if credit.tickets else None

    def rate(self, model: str) -> float:
        """Tokens/s that all schedulers together get done; 0: unknown."""
        return sum(seat.credits[model].tokens_per_second for seat in self.values() if model in seat.credits)

    def models(self) -> tuple[CatalogEntry, ...]:
        """One entry per model: the newest card wins, workers add up."""
        merged: dict[str, CatalogEntry] = {}
        for seat in self.values():
            for entry in seat.catalog.values():
                known = merged.get(entry.model)
                workers = entry.workers_hint + (known.workers_hint if known else 0)
                merged[entry.model] = CatalogEntry(
                    model=entry.model,
                    card_digest=entry.card_digest,
                    worker_address=entry.worker_address,
                    workers_hint=workers,
                )
        return tuple(merged[name] for name in sorted(merged))
