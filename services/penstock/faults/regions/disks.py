"""The stores of auth of several regions."""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

from penstock.auth.store.sqlite import sql
from penstock.auth.store.store import PutKey, PutTenant, StoredState
from penstock.faults.world.stores.disk import Disk, DiskStore


class RegionDisks:
    """One database for each region, with the same tenants and keys."""

    def __init__(self, seed: int, regions: Iterable[str], catalog: Iterable[PutTenant | PutKey]) -> None:
        self.by_region = {region: Disk(f"{seed} {region}") for region in regions}
        changes = list(catalog)
        for disk in self.by_region.values():
            for change in changes:
                sql.apply(disk.connection, change)

    def open_store(
        self, path: str, *, instance_id: str = "", **settings: object
    ) -> AbstractAsyncContextManager[tuple[DiskStore, StoredState]]:
        """Replace auth's `opened_store` by the store of the region with which the instance id begins."""
        region = instance_id.partition("-")[0]
        return self.by_region[region].open_store(path, instance_id=instance_id, **settings)
