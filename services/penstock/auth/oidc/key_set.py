"""Key sets: the public keys of one issuer by key id, and how old they may be. No I/O; `now` is an argument."""

import json
import math
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from penstock.auth.oidc.issuer import Issuer

MAX_KEYS = 64
MAX_BYTES = 2**18
MIN_RSA_BITS = 2_048
_KEY_TYPE = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}  # by the first letters of an algorithm
_CURVE = {"ES256": "secp256r1", "ES384": "secp384r1"}


class KeySetInvalid(Exception):
    """The document is no key set, or has no key that the issuer's algorithms can use."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key for some of the issuer's algorithms."""

    keys: dict[str, PyJWK] = field(repr=False)  # by algorithm


@dataclass(eq=False)
class KeySet:
    """The keys of one issuer. A document that is not valid leaves the former keys in use until they are too old."""

    issuer: Issuer
    max_age: float  # s from a successful load to the refusal of all tokens
    min_interval: float  # s between two loads that unknown key ids cause
    loaded_at: float = -math.inf  # s
    requested_at: float = -math.inf  # s; latest load because of an unknown key id
    _document: bytes | None = None
    _keys: dict[str, SigningKey] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<KeySet {self.issuer.issuer} {len(self._keys)} keys>"

    def is_stale(self, now: float) -> bool:
        return now - self.loaded_at > self.max_age

    def load(self, document: bytes, now: float) -> bool:
        """Replace the keys. Return whether they changed. Raises KeySetInvalid."""
        if document != self._document:
            self._keys = _parse(document, self.issuer)
            has_changed, self._document = True, document
        else:
            has_changed = False
        self.loaded_at = now
        return has_changed

    def find(self, key_id: str | None, algorithm: str) -> PyJWK | None:
        """Return the key of a token. Without a key id it must be the only one for the algorithm."""
        if key_id is not None:
            found = self._keys.get(key_id)
            return found.keys.get(algorithm) if found else None
        fitting = [each.keys[algorithm] for each in self._keys.values() if algorithm in each.keys]
        return fitting[0] if len(fitting) == 1 else None

    def knows(self, key_id: str) -> bool:
        return key_id in self._keys

    def request(self, now: float) -> bool:
        """Return whether an unknown key id is a reason to load the keys again now."""
        if now - self.requested_at < self.min_interval:
            return False
        self.requested_at = now
        return True


def _parse(document: bytes, issuer: Issuer) -> dict[str, SigningKey]:
    if len(document) > MAX_BYTES:
        raise KeySetInvalid(f"the key set has more than {MAX_BYTES} bytes")
    try:
        entries = json.loads(document)["keys"]
        entries = [each for each in entries if isinstance(each, dict)][:MAX_KEYS]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise KeySetInvalid(f"the document is no key set: {type(error).__name__}") from error
    found = {}
    for number, entry in enumerate(entries):
        if keys := _usable(entry, issuer):
            kid = entry.get("kid")
            found[kid if isinstance(kid, str) else f"#{number}"] = SigningKey(keys)
    if not found:
        raise KeySetInvalid(f"none of the {len(entries)} keys is usable with {', '.join(issuer.algorithms)}")
    return found


def _usable(entry: dict[str, Any], issuer: Issuer) -> dict[str, PyJWK]:
    """Return the key for each algorithm of the issuer that it fits; empty for private, symmetric and weak keys."""
    operations = entry.get("key_ops", ["verify"])
    if "d" in entry or entry.get("use", "sig") != "sig" or not isinstance(operations, list):
        return {}
    if "verify" not in operations:
        return {}
    algorithms = [each for each in issuer.algorithms if entry.get("alg", each) == each]
    keys = {}
    for algorithm in algorithms:
        if entry.get("kty") != _KEY_TYPE[algorithm[:2]]:
            continue
        try:
            key = PyJWK(entry, algorithm=algorithm)
        except (PyJWTError, ValueError, TypeError, KeyError):
            continue
        if _is_strong(key.key, algorithm):
            keys[algorithm] = key
    return keys


def _is_strong(key: Any, algorithm: str) -> bool:
    if isinstance(key, RSAPublicKey):
        return key.key_size >= MIN_RSA_BITS
    if isinstance(key, EllipticCurvePublicKey):
        return key.curve.name == _CURVE.get(algorithm)
    return algorithm == "EdDSA"
