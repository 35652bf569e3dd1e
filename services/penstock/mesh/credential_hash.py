"""Digests of credentials, by which caches find them without keeping them."""

from hashlib import blake2b

from penstock.mesh.v1.admission_pb2 import Credential

DIGEST_BYTES = 16


class CredentialHash:
    """Keyed digests. The pepper is a secret of this process, of up to 64 bytes."""

    def __init__(self, pepper: bytes) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES, key=pepper)

    def digest(self, credential: Credential) -> bytes:
        """Return a digest of the bearer, the loopback flag, by which some keys are judged, and the delegation."""
        found = self._digest(credential.bearer.encode()) + (b"\1" if credential.loopback else b"\0")
        return found + self._digest(credential.delegation) if credential.delegation else found

    def _digest(self, data: bytes) -> bytes:
        digest = self._hash.copy()
        digest.update(data)
        return digest.digest()
