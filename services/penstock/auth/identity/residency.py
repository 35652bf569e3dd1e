"""Residency: the tenants that do not allow all regions, as one digest by which edges detect changes. No I/O."""

import hashlib
from collections.abc import Callable, Iterable

from penstock.auth.identity.tenant import Tenant

DIGEST_BYTES = 16


class Residency:
    """The allowed regions of tenants that do not allow all. `on_changed` is called after each change.

    Each replica of auth has the same digest for the same tenants, also after a restart.
    """

    def __init__(self) -> None:
        self.on_changed: Callable[[], None] = lambda: None
        self._regions: dict[str, tuple[str, ...]] = {}  # by tenant

    @property
    def digest(self) -> bytes:
        """Digest of all entries; empty if there are none."""
        if not self._regions:
            return b""
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for tenant_id, regions in sorted(self._regions.items()):
            digest.update(f"{tenant_id} {' '.join(regions)}\n".encode())
        return digest.digest()

    def put(self, tenant: Tenant) -> None:
        self._set({**self._regions, tenant.tenant_id: tenant.policy.allowed_regions})

    def remove(self, tenant_id: str) -> None:
        self._set({**self._regions, tenant_id: ()})

    def replace(self, tenants: Iterable[Tenant]) -> None:
        """Set the regions of all tenants."""
        self._set({each.tenant_id: each.policy.allowed_regions for each in tenants})

    def _set(self, regions: dict[str, tuple[str, ...]]) -> None:
        after = {tenant_id: allowed for tenant_id, allowed in regions.items() if allowed}
        if after != self._regions:
            self._regions = after
            self.on_changed()
