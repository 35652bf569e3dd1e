"""Which shard of the queue a ticket belongs to: the same answer at every edge, without a word between them."""

from collections.abc import Iterable
from hashlib import blake2b


def shard_for(shards: Iterable[str], model: str, tenant_id: str) -> str | None:
    """Return the shard of a tenant's tickets for a model; None where there is no shard.

    Rendezvous hashing: when a shard goes, only its own tenants move, and they spread over the others.
    Source: Thaler and Ravishankar 1998, Using name-based mappings to increase hit rates.
    """
    key = f"{model}\0{tenant_id}".encode()
    return max(shards, key=lambda shard: (_score(shard, key), shard), default=None)


def _score(shard: str, key: bytes) -> bytes:
    return blake2b(key, digest_size=8, key=blake2b(shard.encode(), digest_size=32).digest()).digest()
