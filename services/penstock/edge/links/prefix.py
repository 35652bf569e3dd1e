"""Names for the beginnings of prompts, by which a scheduler finds the worker that has them in its cache."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

MAX_HASHES = 64


def prefix_hashes(token_ids: Sequence[int], block_size: int, salt: bytes) -> list[int]:
    """Return a 64-bit hash of each leading full KV block, chained and salted per tenant; none without a salt."""
    hashes: list[int] = []
    if not salt or not block_size:
        return hashes
    chain = salt
    for end in range(block_size, min(len(token_ids), MAX_HASHES * block_size) + 1, block_size):
        block = array("I", token_ids[end - block_size : end]).tobytes()
        chain = blake2b(chain + block, digest_size=8).digest()
        hashes.append(int.from_bytes(chain, "little"))
    return hashes
