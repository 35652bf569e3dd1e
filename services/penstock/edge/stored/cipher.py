"""Sealing of stored responses with keys of the operator's. No process but the edges has them."""

import base64
import binascii
import hmac
import os
from collections.abc import Mapping
from enum import StrEnum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.chassis.errors import Internal
from penstock.mesh.v1.responses_pb2 import ResponseKey

KEY_BYTES = 32
NONCE_BYTES = 12
MAX_NAME_BYTES = 64
_LABEL = b"penstock stored response 1"


class Part(StrEnum):
    """The parts of a stored response, each sealed by itself."""

    REQUEST = "request"
    RESUME = "resume"
    TOKENS = "tokens"
    OUTPUT = "output"


class SealBroken(Internal):
    """A stored response cannot be opened: its key is not among those of this edge, or its bytes were changed."""

    default_reason = "SEAL_BROKEN"


class ResponseCipher:
    """Seals and opens parts of responses with AES-256-GCM (NIST SP 800-38D).

    Each response has a key of its own, which HMAC-SHA256 derives from the operator's key, so that the number of random
    nonces under one key stays small. Tenant, response and part are authenticated: a part cannot be moved to another
    response. A sealed part is the length and name of the operator's key, the nonce, and the ciphertext with its tag.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """`keys`: by name; the first seals, all of them open. Empty: nothing can be stored."""
        self._keys = dict(keys)
        self._name = next(iter(self._keys), "")

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __repr__(self) -> str:
        return f"<ResponseCipher {', '.join(self._keys) or 'without keys'}>"

    def seal(self, key: ResponseKey, part: Part, plaintext: bytes) -> bytes:
        name, nonce = self._name.encode(), os.urandom(NONCE_BYTES)
        sealed = self._aead(self._name, key).encrypt(nonce, plaintext, part.encode())
        return b"%c%b%b%b" % (len(name), name, nonce, sealed)

    def open(self, key: ResponseKey, part: Part, sealed: bytes) -> bytes:
        """Return the plaintext. Raises SealBroken."""
        size = sealed[0] if sealed else 0
        name, rest = sealed[1 : 1 + size].decode(errors="replace"), sealed[1 + size :]
        if name not in self._keys:
            raise SealBroken(
                f"response {key.response_id} is sealed with the key {name!r}, which is not among those of this edge; "
                "keep former keys in PENSTOCK_EDGE_RESPONSE_KEYS while responses that they sealed exist"
            )
        try:
            return self._aead(name, key).decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], part.encode())
        except (InvalidTag, ValueError):
            raise SealBroken(f"the {part} of response {key.response_id} was changed after it was stored") from None

    def _aead(self, name: str, key: ResponseKey) -> AESGCM:
        tenant = key.tenant_id.encode()
        context = b"%b %d:%b%b" % (_LABEL, len(tenant), tenant, key.response_id.encode())
        return AESGCM(hmac.digest(self._keys[name], context, "sha256"))


def parse_keys(text: str) -> dict[str, bytes]:
    """Return the keys of a setting `name:base64,name:base64`. Raises ValueError, whose message has no key."""
    keys: dict[str, bytes] = {}
    for position, entry in enumerate(filter(None, (each.strip() for each in text.split(","))), 1):
        name, _, encoded = entry.partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            key = b""
        if len(key) != KEY_BYTES or not 0 < len(name.encode()) <= MAX_NAME_BYTES or name in keys:
            raise ValueError(
                f"key {position} must be `name:base64` of {KEY_BYTES} random bytes with a name of its own of at most "
                f"{MAX_NAME_BYTES} bytes; `openssl rand -base64 {KEY_BYTES}` makes them"
            )
        keys[name] = key
    return keys
