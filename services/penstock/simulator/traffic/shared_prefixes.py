"""What prompts have in common with others, so that caches of prefixes find something. Pure."""

from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from random import Random
from typing import NamedTuple

from penstock.edge.links.prefix import block_hashes

PIECE = 512  # tokens, as Mooncake's traces have it
SALT = 16  # bytes
OWN = 1 << 62  # beyond all tokens that prompts share
LONGEST = 1 << 24  # tokens of one prompt, to tell prompts apart


class Beginning(NamedTuple):
    """Names of a prompt's leading pieces. Where all before them are equal, equal names stand for equal tokens."""

    names: tuple[int, ...] = ()
    piece: int = PIECE  # tokens of each; the prompt may end within the last

    @property
    def tokens(self) -> int:
        return len(self.names) * self.piece

    def token_ids(self, prompt: int, number: int) -> list[int]:
        """Return the tokens of the prompt of request `number`; what is beyond the beginning is nobody else's."""
        shared = chain.from_iterable(range(name * self.piece, (name + 1) * self.piece) for name in self.names)
        own = OWN + number * LONGEST
        return [*shared, *range(own, own + max(0, prompt - self.tokens))][:prompt]


NOTHING = Beginning()


@dataclass(frozen=True, slots=True)
class SharedTexts:
    """`share` of all prompts begin with one of `texts` texts of `tokens` tokens, each as likely: system prompts."""

    tokens: int
    texts: int = 1
    share: float = 1.0

    def draw(self, rng: Random) -> Beginning:
        text = rng.randrange(self.texts)
        return Beginning((text,), self.tokens) if rng.random() < self.share else NOTHING


def salt_of(tenant: str) -> bytes:
    """Return what keeps a tenant's cached beginnings apart from all others', as auth makes it."""
    return blake2b(tenant.encode(), digest_size=SALT).digest()


def packed_hashes(token_ids: list[int], block_size: int, salt: bytes) -> bytes:
    """Return the names of the leading KV blocks as a waiting ticket keeps them."""
    return b"".join(each.to_bytes(8, "little") for each in block_hashes(token_ids, block_size, salt))
