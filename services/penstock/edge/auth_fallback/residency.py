"""Residency: whether tenants allow the region of this edge, and whether cached identities have the wrong regions."""

from penstock.chassis.errors import PermissionDenied
from penstock.mesh.regions import REGION_NOT_ALLOWED, is_region_allowed, refusal_text
from penstock.mesh.v1.admission_pb2 import Identity

MAX_REPLICAS = 64  # addresses of auth whose digests are kept; the oldest are forgotten first


class Residency:
    """Judges identities, of whichever replica of auth, by the region of this edge."""

    def __init__(self, region: str) -> None:
        self._region = region  # empty: not set
        self._digests: dict[str, bytes] = {}  # the latest of each replica, by address

    def refusal(self, identity: Identity) -> PermissionDenied | None:
        """Return the error of a caller whose tenant does not allow this region."""
        allowed = identity.allowed_regions
        if is_region_allowed(allowed, self._region):
            return None
        return PermissionDenied(refusal_text(identity.tenant_id, allowed, self._region), reason=REGION_NOT_ALLOWED)

    def is_changed(self, address: str, digest: bytes) -> bool:
        """Record the digest that a replica sent. Return whether identities may have been cached under another one.

        The digest of a replica at a new address is compared with those of the others.
        """
        known = self._digests.pop(address, None)
        is_changed = digest != known if known is not None else digest not in self._digests.values()
        if known is None and len(self._digests) >= MAX_REPLICAS:
            del self._digests[next(iter(self._digests))]
        self._digests[address] = digest
        return is_changed
