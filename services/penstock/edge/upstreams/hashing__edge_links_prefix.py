"""Names for the beginnings of prompts, by which a scheduler finds the worker that has them in its cache."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

MAX_BLOCK_HASHES = 64
BLOCK_HASH_BYTES = 16  # bytes


def block_hashes(token_ids: Sequence[int], block_size: int, salt: bytes) -> list[int]:
    """Return 64 bits of the name that engines give each leading full KV block, chained and salted; none without a salt.

    A worker tells its scheduler the same of the blocks in its cache, so both must name them alike; a test holds this.
    """
    hashes: list[int] = []
    if not salt or not block_size:
        return hashes
    name = blake2b(salt, digest_size=BLOCK_HASH_BYTES).digest()
    for end in range(block_size, min(len(token_ids), MAX_BLOCK_HASHES * block_size) + 1, block_size):
        block = array("q", token_ids[end - block_size : end]).tobytes()
        name = blake2b(name + block, digest_size=BLOCK_HASH_BYTES).digest()
        hashes.append(int.from_bytes(name[:8], "little"))
    return hashes
