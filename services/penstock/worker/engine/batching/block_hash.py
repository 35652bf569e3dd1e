"""Block hashes: equal hashes mean equal tokens from the start of the sequence on, under the same salt."""

import hashlib
from array import array
from collections.abc import Sequence

_DIGEST_BYTES = 16


def root_hash(salt: bytes) -> bytes:
    return hashlib.blake2b(salt, digest_size=_DIGEST_BYTES).digest()


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of the block that holds `token_ids` and follows the block with the hash `parent`."""
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=_DIGEST_BYTES).digest()
