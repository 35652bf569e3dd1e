"""An OpenID provider of the tests: keys of several kinds, key sets, and tokens that are right or wrong in one point."""

import base64
import json
from dataclasses import dataclass, field
from functools import cache

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import get_default_algorithms

from penstock.auth.oidc.issuer import Issuer
from penstock.auth.oidc.key_set import KeySet
from penstock.auth.oidc.verifier import JwtVerifier

NOW = 1_800_000_000.0
ISSUER, AUDIENCE = "https://login.example/", "penstock"
ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")
KINDS = {"RS": "rsa", "PS": "rsa", "ES": "ec", "Ed": "ed"}


def private_key(kind: str, number: int = 0, bits: int = 2048):
    return _private_key(kind, number, bits)


@cache  # by all three arguments
def _private_key(kind, number, bits):
    if kind == "rsa":
        return rsa.generate_private_key(public_exponent=65537, key_size=bits)
    return ec.generate_private_key(ec.SECP256R1()) if kind == "ec" else ed25519.Ed25519PrivateKey.generate()


def public_pem(kind="rsa", number=0) -> bytes:
    return private_key(kind, number).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(algorithm="RS256", kid="key-1", number=0, *, bits=2048, private=False, **more):
    """A JSON web key; a member that is None is left out."""
    key = private_key(KINDS[algorithm[:2]], number, bits)
    found = get_default_algorithms()[algorithm].to_jwk(key if private else key.public_key(), as_dict=True)
    found.pop("key_ops", None)
    found |= {"kid": kid, "use": "sig", "alg": algorithm} | more
    return {name: value for name, value in found.items() if value is not None}


def key_set_of(*keys) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


def claims_of(**changes):
    """The claims of a valid token; a change to None leaves a claim out."""
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "anna", "iat": NOW - 10, "exp": NOW + 300, "tenant": "acme"}
    return {name: value for name, value in (claims | changes).items() if value is not None}


def signed(claims=None, algorithm="RS256", kid="key-1", number=0, *, headers=None, key=None):
    """A token that a key of the provider signed."""
    key = key or private_key(KINDS[algorithm[:2]], number)
    named = ({"kid": kid} if kid is not None else {}) | (headers or {})
    return jwt.encode(claims_of() if claims is None else claims, key, algorithm=algorithm, headers=named)


def encoded(part) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed_parts(header, payload, algorithm="RS256", key=None):
    """A token of any header and payload, as objects or bytes, with a right signature over them."""
    message = f"{encoded(header)}.{encoded(payload)}"
    key = key or private_key(KINDS[algorithm[:2]])
    return f"{message}.{encoded(get_default_algorithms()[algorithm].sign(message.encode(), key))}"


@dataclass
class Provider:
    """A verifier of one issuer with the keys `key-1` for each algorithm, and the loads that it asked for."""

    issuer: Issuer = field(
        default_factory=lambda: Issuer(
            issuer=ISSUER,
            audience=(AUDIENCE, "other-service"),
            jwks="/keys.json",
            algorithms=ALGORITHMS,
            tenant_claim="tenant",
            class_claim="class",
            models_claim="models",
        )
    )
    requested: list = field(default_factory=list)

    def __post_init__(self):
        self.key_set = KeySet(self.issuer, max_age=3600.0, min_interval=10.0)
        self.verifier = JwtVerifier({self.issuer.issuer: self.key_set}, 30.0, self.requested.append)
        self.load(*(jwk(each, f"key-{each}") for each in ALGORITHMS), jwk("RS256", "key-1"))

    def load(self, *keys, now=NOW):
        has_changed = self.key_set.load(key_set_of(*keys), now)
        self.verifier.on_loaded([self.key_set], has_changed=has_changed)

    def verify(self, token, now=NOW):
        return self.verifier.verify(token, now)
