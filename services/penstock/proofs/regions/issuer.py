"""Tokens of callers that every region accepts: an issuer whose key set is a file, as keys belong to one region."""

import base64
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER, AUDIENCE, KEY_ID, TENANT_CLAIM = "https://proofs.penstock.local/", "penstock", "proof", "tenant"
TTL_S = 24 * 3600


class TokenIssuer:
    """Signs tokens of tenants. `settings` let auth accept them."""

    def __init__(self, folder: Path) -> None:
        self._key = Ed25519PrivateKey.generate()
        point = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        jwk = {"kty": "OKP", "crv": "Ed25519", "x": _base64url(point), "kid": KEY_ID, "use": "sig", "alg": "EdDSA"}
        key_set, issuers = folder / "keys.json", folder / "issuers.json"
        key_set.write_text(json.dumps({"keys": [jwk]}))
        entry = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": str(key_set)}
        issuers.write_text(json.dumps([{**entry, "algorithms": ["EdDSA"], "tenant_claim": TENANT_CLAIM}]))
        self.settings = (f"PENSTOCK_AUTH_ISSUERS={issuers}",)

    def token(self, tenant_id: str) -> str:
        now = int(time.time())
        header = {"alg": "EdDSA", "kid": KEY_ID, "typ": "JWT"}
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "proof", "iat": now, "exp": now + TTL_S}
        parts = (header, {**claims, TENANT_CLAIM: tenant_id})
        signed = ".".join(_base64url(json.dumps(each).encode()) for each in parts)
        return f"{signed}.{_base64url(self._key.sign(signed.encode()))}"


@contextmanager
def token_issuer() -> Iterator[TokenIssuer]:
    """Yield an issuer, whose files exist for the block."""
    with tempfile.TemporaryDirectory(prefix="penstock-issuer-") as folder:
        yield TokenIssuer(Path(folder))


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
