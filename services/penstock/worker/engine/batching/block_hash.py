"""Names of KV blocks by content: equal names mean equal tokens from the start of the sequence, under the same salt."""

import hashlib
from array import array
from collections.abc import Sequence

_DIGEST_BYTES = 16  # bytes


def root_hash(salt: bytes) -> bytes:
    return hashlib.blake2b(salt, digest_size=_DIGEST_BYTES).digest()


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Name of the block that holds `token_ids` after the block named `parent`."""
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=_DIGEST_BYTES).digest()
