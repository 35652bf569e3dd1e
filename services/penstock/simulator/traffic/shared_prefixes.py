"""What prompts have in common with others, so that caches of prefixes find something. Pure."""

from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from random import Random
from typing import NamedTuple

from penstock.edge.upstreams.hashing import block_hashes

PIECE_TOKENS = 512  # tokens, as Mooncake's traces have it
SALT_BYTES = 16  # bytes
FIRST_UNSHARED_ID = 1 << 62  # beyond all tokens that prompts share
MAX_PROMPT_TOKENS = 1 << 24  # tokens of one prompt, to tell prompts apart


class SharedPrefix(NamedTuple):
    """Names of a prompt's leading pieces. Where all before them are equal, equal names stand for equal tokens."""

    piece_ids: tuple[int, ...] = ()
    piece_tokens: int = PIECE_TOKENS  # tokens of each; the prompt may end within the last

    @property
    def tokens(self) -> int:
        return len(self.piece_ids) * self.piece_tokens

    def token_ids(self, prompt_tokens: int, request_number: int) -> list[int]:
        """Return the tokens of the prompt of request `number`; what is beyond the beginning is nobody else's."""
        shared = chain.from_iterable(
            range(name * self.piece_tokens, (name + 1) * self.piece_tokens) for name in self.piece_ids
        )
        own = FIRST_UNSHARED_ID + request_number * MAX_PROMPT_TOKENS
        return [*shared, *range(own, own + max(0, prompt_tokens - self.tokens))][:prompt_tokens]


NO_PREFIX = SharedPrefix()


@dataclass(frozen=True, slots=True)
class PrefixPool:
    """`share` of all prompts begin with one of `texts` texts of `tokens` tokens, each as likely: system prompts."""

    tokens: int
    texts: int = 1
    share: float = 1.0

    def draw(self, rng: Random) -> SharedPrefix:
        text = rng.randrange(self.texts)
        return SharedPrefix((text,), self.tokens) if rng.random() < self.share else NO_PREFIX


def salt_of(tenant: str) -> bytes:
    """Return what keeps a tenant's cached beginnings apart from all others', as auth makes it."""
    return blake2b(tenant.encode(), digest_size=SALT_BYTES).digest()


def packed_block_hashes(token_ids: list[int], block_size: int, salt: bytes) -> bytes:
    """Return the names of the leading KV blocks as a waiting ticket keeps them."""
    return b"".join(each.to_bytes(8, "little") for each in block_hashes(token_ids, block_size, salt))
