"""Partitions: every tenant belongs to one, and every partition has one owner at a time."""

from functools import lru_cache
from hashlib import blake2b

PARTITIONS = 64  # rows of the table; a number that never changes, because stored rows carry their partition


@lru_cache(maxsize=65_536)
def partition_of(tenant_id: str) -> int:
    """Return the partition of a tenant: a hash that is the same in every process and release."""
    digest = blake2b(tenant_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % PARTITIONS
