"""Model registry: the served models, merged from the latest catalog of every queue shard."""

from collections.abc import Iterable, Mapping
from math import inf

from penstock.mesh.v1.ticket_pb2 import CatalogEntry


class ModelRegistry:
    """Adds a model once a shard names it, and removes it `removal_delay` seconds after the last shard stopped doing so.

    A shard or scheduler that restarts serves no model for a moment. The delay hides that from requests.
    """

    def __init__(self, *, removal_delay: float = 10.0) -> None:
        self._removal_delay = removal_delay  # s
        self._by_shard: dict[str, dict[str, CatalogEntry]] = {}
        self._last_seen: dict[str, tuple[CatalogEntry, float]] = {}
        self._merged: dict[str, CatalogEntry] = {}
        self._merged_until = -inf  # s; merged again at this time or at the next catalog

    def __repr__(self) -> str:
        return f"<ModelRegistry {sorted(self._last_seen)} from {len(self._by_shard)} shards>"

    def update_shard(self, shard: str, entries: Iterable[CatalogEntry], now: float) -> None:
        """Replace the models of a shard by the entries of its latest catalog."""
        self._merged_until = -inf
        before = self._by_shard.get(shard, {})
        self._by_shard[shard] = {entry.model: entry for entry in entries}
        for entry in [*before.values(), *self._by_shard[shard].values()]:
            self._last_seen[entry.model] = entry, now

    def remove_shard(self, shard: str, now: float) -> None:
        if shard in self._by_shard:
            self.update_shard(shard, (), now)
            del self._by_shard[shard]

    def entries(self, now: float) -> Mapping[str, CatalogEntry]:
        """Return an entry for each model. Of several shards, the one with most workers has the newest card."""
        if now >= self._merged_until:  # cached, because every request reads it
            self._merged, self._merged_until = self._merge(now)
        return self._merged

    def _merge(self, now: float) -> tuple[dict[str, CatalogEntry], float]:
        """Return the merged entries and the time until which they are valid."""
        found: dict[str, CatalogEntry] = {}
        until = inf
        for entries in self._by_shard.values():
            for name, entry in entries.items():
                if name not in found or entry.workers_hint > found[name].workers_hint:
                    found[name] = entry
        for name, (entry, seen_at) in list(self._last_seen.items()):
            if name in found:
                continue
            if now < seen_at + self._removal_delay:
                found[name] = entry
                until = min(until, seen_at + self._removal_delay)
            else:
                del self._last_seen[name]
        return found, until
