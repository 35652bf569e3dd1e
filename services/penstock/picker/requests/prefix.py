"""Hashes of the beginning of a prompt, by which requests with a common prefix find the same server.

The tokenizer of a server is not known here, so a block is a number of bytes that is about one KV block of tokens.
"""

from hashlib import blake2b

from penstock.chassis.prefix_depths import PREFIX_DEPTHS
from penstock.picker.endpoints.endpoint import HASH_BLOCK_TOKENS

BLOCK_BYTES = 4 * HASH_BLOCK_TOKENS


def prefix_hashes(prefix: bytes, model: str) -> tuple[int, ...]:
    """Return the 64-bit hashes of the whole blocks of `prefix` at `PREFIX_DEPTHS`, of one model."""
    digest, hashed, hashes = blake2b(model.encode("utf-8", "surrogatepass"), digest_size=8), 0, []
    for depth in PREFIX_DEPTHS:
        end = depth * BLOCK_BYTES
        if end > len(prefix):
            break
        digest.update(prefix[hashed:end])
        hashed = end
        hashes.append(int.from_bytes(digest.copy().digest(), "little"))
    return tuple(hashes)
