"""Model registry: the served models, merged from the latest catalog of every queue shard."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from penstock.mesh.model_key import model_key
from penstock.mesh.v1.ticket_pb2 import CatalogEntry


def key_of(entry: CatalogEntry) -> str:
    return model_key(entry.model, entry.card_digest)


@dataclass(slots=True)
class ServedModels:
    """The models at one time. A name has several versions while its weights or its tokenizer are being replaced."""

    entries: dict[str, CatalogEntry] = field(default_factory=dict)  # by key
    # By name: the versions that a shard names now, or else those that were named a moment ago.
    versions: dict[str, dict[str, CatalogEntry]] = field(default_factory=dict)
    named: frozenset[str] = frozenset()  # the names that a shard has now


class ModelRegistry:
    """Adds a model once a shard names it, and removes it `removal_delay` seconds after the last shard stopped doing so.

    A shard or scheduler that restarts serves no model for a moment. The delay hides that from requests.
    """

    def __init__(self, *, removal_delay: float = 10.0) -> None:
        self._removal_delay = removal_delay  # s
        self._by_shard: dict[str, dict[str, CatalogEntry]] = {}
        self._last_seen: dict[str, tuple[CatalogEntry, float]] = {}
        self._merged = ServedModels()
        self._merged_until = -inf  # s; merged again at this time or at the next catalog

    def __repr__(self) -> str:
        return f"<ModelRegistry {sorted(self._last_seen)} from {len(self._by_shard)} shards>"

    def update_shard(self, shard: str, entries: Iterable[CatalogEntry], now: float) -> bool:
        """Replace the models of a shard by its latest catalog. Return whether it names other models than before."""
        self._merged_until = -inf
        before = self._by_shard.get(shard, {})
        after = self._by_shard[shard] = {key_of(entry): entry for entry in entries}
        for key, entry in (before | after).items():
            self._last_seen[key] = entry, now
        return before.keys() != after.keys()

    def remove_shard(self, shard: str, now: float) -> None:
        if shard in self._by_shard:
            self.update_shard(shard, (), now)
            del self._by_shard[shard]

    def entries(self, now: float) -> Mapping[str, CatalogEntry]:
        """Return an entry for the key of each model, with the address of the largest pool."""
        return self._served(now).entries

    def versions(self, now: float) -> Mapping[str, Mapping[str, CatalogEntry]]:
        """Return by name the versions, by key, to which new requests may go."""
        return self._served(now).versions

    def is_named(self, name: str, now: float) -> bool:
        """Whether a shard names a version of the model now, so that a worker serves it."""
        return name in self._served(now).named

    def is_replaced(self, key: str, name: str, now: float) -> bool:
        """Whether no worker serves the model at present, while workers serve another version of its name."""
        versions = self._served(now).versions.get(name, {})
        return key not in versions and bool(versions)

    def _served(self, now: float) -> ServedModels:
        if now >= self._merged_until:  # cached, because every request reads it
            self._merged, self._merged_until = self._merge(now)
        return self._merged

    def _merge(self, now: float) -> tuple[ServedModels, float]:
        """Return the merged models and the time until which they are valid."""
        named: dict[str, CatalogEntry] = {}
        for entries in self._by_shard.values():
            for key, entry in entries.items():
                if key not in named or entry.workers_hint > named[key].workers_hint:
                    named[key] = entry
        lost, until = self._recently_lost(named.keys(), now)
        served = ServedModels(named | lost)
        for key, entry in named.items():
            served.versions.setdefault(entry.model, {})[key] = entry
        served.named = frozenset(served.versions)
        for key, entry in lost.items():
            if entry.model not in served.named:
                served.versions.setdefault(entry.model, {})[key] = entry
        return served, until

    def _recently_lost(self, named: Iterable[str], now: float) -> tuple[dict[str, CatalogEntry], float]:
        """Return the models that a shard has named a moment ago, and the time until which they count."""
        lost: dict[str, CatalogEntry] = {}
        until = inf
        for key in self._last_seen.keys() - set(named):
            entry, seen_at = self._last_seen[key]
            if now < seen_at + self._removal_delay:
                lost[key], until = entry, min(until, seen_at + self._removal_delay)
            else:
                del self._last_seen[key]
        return lost, until
