"""Writes the catalog of the home region to the store of a spending region, and applies it in memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeGuard

import structlog

from penstock.auth.authorizer import Authorizer, RemovedTenant
from penstock.auth.models.routes import RouteList
from penstock.auth.regions.catalog.catalog import Catalog, Deletion, Put, deletions, puts, unknown_to
from penstock.auth.regions.catalog.present import present_catalog
from penstock.auth.store.responses.store import ResponseStore
from penstock.auth.store.store import (
    Change,
    DeleteKey,
    DeletePrice,
    DeleteRoute,
    DeleteTenant,
    PutHome,
    PutKey,
    PutPrice,
    PutRoute,
    PutTenant,
    Store,
)
from penstock.chassis.errors import FailedPrecondition, Unavailable

log = structlog.get_logger()

WRITER_PARTITION = 0  # its owner writes the catalog; the other processes of the region learn it from the store
# s for which the home region must lack an item before it is deleted here. A process of the home region that has just
# replaced another one as the source may not know the latest items yet.
DELETION_DELAY_S = 2.0


@dataclass(eq=False)
class CatalogWriter:
    """Makes the catalog of this region equal to that of its home. Each step compares both, so that none is lost."""

    authorizer: Authorizer
    routes: RouteList
    responses: ResponseStore
    store: Store
    clock: Callable[[], float]
    home: str  # name of the home region
    followed: str  # region whose catalog the store has; empty: that of this region itself
    replaces: bool = False  # whether the first catalog may delete what only this region has
    target: Catalog | None = None  # None: this region follows none now
    unknown: int = 0  # tenants and keys that the home region lacks, and that keep this region from following it
    _is_accepted: bool = False  # this process has followed, and later deletions are those of its home
    _pending: int = 0  # changes that are being written
    # Revocations that are in force here and that the store may lack, by key: their writing has failed, or is another
    # process's, which may have died with it.
    _unwritten: dict[str, PutKey] = field(default_factory=dict)
    _lacking_since: dict[Deletion, float] = field(default_factory=dict)  # s

    def accepts(self, target: Catalog) -> bool:
        """Return whether this region may follow. Its own tenants and keys are not deleted unless that is allowed."""
        if self.followed == self.home or self.replaces or self._is_accepted:
            self.unknown = 0
            return True
        found = unknown_to(present_catalog(self.authorizer, self.routes), target, self.clock())
        if found and self.unknown != len(found):
            log.error(
                "home_catalog_differs",
                because="CATALOG_DIFFERS",
                home=self.home,
                lacks=found[:10],
                count=len(found),
                advice="create them in the home region, or set PENSTOCK_AUTH_REPLACE_CATALOG to delete them here",
            )
        self.unknown, self._is_accepted = len(found), not found
        return self._is_accepted

    def follow(self, target: Catalog | None) -> None:
        """Set the catalog of the home region, which `accepts` has admitted. None: this process follows none."""
        self.target = target
        self.step()

    def step(self) -> None:
        """Write what differs, unless changes are being written."""
        if self.target is None or self._pending:
            return
        now, present = self.clock(), present_catalog(self.authorizer, self.routes)
        changes, lacking = puts(present, self.target), deletions(present, self.target)
        self._lacking_since = {each: self._lacking_since.get(each, now) for each in lacking}
        self._revoke(self.target)
        if WRITER_PARTITION in self.authorizer.served:
            self._write_all(self.target, changes, now)
        else:  # no later step finds them
            self._unwritten |= {each.key.key_id: each for each in changes if _is_revocation(each)}

    def _write_all(self, target: Catalog, changes: list[Put], now: float) -> None:
        unwritten, self._unwritten = self._unwritten, {}
        head = [] if self.followed == self.home else [PutHome(self.home)]
        revocations = [each for key_id, each in unwritten.items() if key_id in target.keys]
        due = [each for each in self._due(now) if not isinstance(each, DeleteTenant)]
        for change in (*head, *revocations, *changes, *due):
            self._write(change)

    async def delete_tenants(self) -> None:
        """Delete the tenants that the home region lacks, each by the process that owns it and once it is not active."""
        now = self.clock()
        for each in self._due(now):
            if isinstance(each, DeleteTenant) and self.authorizer.served.has_tenant(each.tenant_id):
                await self._delete_tenant(each.tenant_id, now)

    def _due(self, now: float) -> list[Deletion]:
        if self.target is None:
            return []
        return [each for each, since in self._lacking_since.items() if now - since >= DELETION_DELAY_S]

    async def _delete_tenant(self, tenant_id: str, now: float) -> None:
        if self.authorizer.reservations.quota(tenant_id) is None:
            return
        try:
            removed = self.authorizer.remove_tenant(tenant_id)
        except FailedPrecondition:  # it has active requests
            return
        try:
            await self.responses.delete_of_tenant(tenant_id)
        except Unavailable:
            self.authorizer.restore_tenant(removed)
            return
        self.routes.delete_tenant(tenant_id)
        self._pending += 1
        self.store.write(DeleteTenant(tenant_id, now), partial(self._on_deleted, removed))

    def _on_deleted(self, removed: RemovedTenant, error: Exception | None) -> None:
        self._pending -= 1
        if error:
            self.authorizer.restore_tenant(removed)
        else:
            self.authorizer.forget_shares(removed.quota.tenant.tenant_id)

    def _revoke(self, target: Catalog) -> None:
        """Apply revocations at once, in each process of the region and also if the store cannot be written."""
        for key in target.keys.values():
            if key.revoked_at is not None and key.key_id in self.authorizer.keys:
                self.authorizer.keys.revoke(key.key_id, key.revoked_at)

    def _write(self, change: Change) -> None:
        self._pending += 1
        self.store.write(change, partial(self._on_written, change))

    def _on_written(self, change: Change, error: Exception | None) -> None:
        self._pending -= 1
        if error:
            if isinstance(change, PutKey):  # a revocation is in memory already, and no next step would find it
                self._unwritten[change.key.key_id] = change
            return
        self._apply(change, self.clock())
        if not self._pending:
            self.authorizer.authenticator.forget_rejections()
            self.step()  # the catalog may have changed meanwhile

    def _apply(self, change: Change, now: float) -> None:
        authorizer = self.authorizer
        match change:
            case PutHome(home):
                self.followed = home
            case PutTenant(tenant):
                authorizer.put_tenant(tenant, now)
            case PutKey(key):
                authorizer.put_key(key, now)
            case PutPrice(price):
                authorizer.put_price(price)
            case PutRoute(route):
                self.routes.put(route)
            case DeleteKey(key_id):
                if key_id in authorizer.keys:
                    authorizer.remove_key(authorizer.keys.by_id(key_id))
            case DeletePrice(model):
                authorizer.delete_price(model)
            case DeleteRoute(name, tenant_id):
                self.routes.delete(name, tenant_id)


def _is_revocation(change: Put) -> TypeGuard[PutKey]:
    return isinstance(change, PutKey) and change.key.revoked_at is not None
