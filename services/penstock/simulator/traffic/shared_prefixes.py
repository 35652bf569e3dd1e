"""Shared prefixes of prompts, for prefix caches. Pure."""

from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from random import Random
from typing import NamedTuple

from penstock.edge.upstreams.hashing import block_hashes

PIECE_TOKENS = 512  # as in Mooncake's traces
SALT_BYTES = 16
FIRST_UNSHARED_ID = 1 << 62  # above the ids of all shared tokens
MAX_PROMPT_TOKENS = 1 << 24  # size of the id range of each prompt's own tokens


class SharedPrefix(NamedTuple):
    """The ids of a prompt's leading pieces. Equal sequences of ids stand for equal tokens."""

    piece_ids: tuple[int, ...] = ()
    piece_tokens: int = PIECE_TOKENS  # of each piece; the prompt may end within the last one

    @property
    def tokens(self) -> int:
        return len(self.piece_ids) * self.piece_tokens

    def token_ids(self, prompt_tokens: int, request_number: int) -> list[int]:
        """Return the token ids of the prompt of one request; ids after the prefix are unique to the request."""
        shared = chain.from_iterable(
            range(piece * self.piece_tokens, (piece + 1) * self.piece_tokens) for piece in self.piece_ids
        )
        own = FIRST_UNSHARED_ID + request_number * MAX_PROMPT_TOKENS
        return [*shared, *range(own, own + max(0, prompt_tokens - self.tokens))][:prompt_tokens]


NO_PREFIX = SharedPrefix()


@dataclass(frozen=True, slots=True)
class PrefixPool:
    """System prompts: a `share` of all prompts starts with one of `texts` texts, each of `tokens` tokens."""

    tokens: int
    texts: int = 1
    share: float = 1.0

    def draw(self, rng: Random) -> SharedPrefix:
        text = rng.randrange(self.texts)
        return SharedPrefix((text,), self.tokens) if rng.random() < self.share else NO_PREFIX


def salt_of(tenant: str) -> bytes:
    """Return the cache salt of a tenant, which separates its cached prefixes from others, as auth does."""
    return blake2b(tenant.encode(), digest_size=SALT_BYTES).digest()


def packed_block_hashes(token_ids: list[int], block_size: int, salt: bytes) -> bytes:
    """Return the hashes of the leading KV blocks in the format of a ticket."""
    return b"".join(each.to_bytes(8, "little") for each in block_hashes(token_ids, block_size, salt))
