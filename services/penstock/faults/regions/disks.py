"""The stores of auth of several regions."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from penstock.auth.store.sqlite import sql
from penstock.auth.store.store import PutKey, PutTenant, StoredState
from penstock.auth.store.totals import RegionTotal
from penstock.auth.usage.query import SQLITE, unreported_statement
from penstock.faults.regions.border import region_of
from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.stores.disk import COMMIT_DELAY_S, Disk, DiskStore
from penstock.faults.world.stores.replica_store import store_opener
from penstock.faults.world.stores.shared_database import SharedDatabase


class RegionDisks:
    """One database for each region. `catalogs` has its first tenants and keys."""

    def __init__(self, by_region: Mapping[str, Disk], catalogs: Mapping[str, Iterable[PutTenant | PutKey]]) -> None:
        self.by_region = by_region
        for region, changes in catalogs.items():
            for each in changes:
                sql.apply(by_region[region].connection, each)

    def open_store(
        self, path: str, *, instance_id: str = "", **settings: Any
    ) -> AbstractAsyncContextManager[tuple[DiskStore, StoredState]]:
        """Replace auth's `opened_store` by the store of the region with which the instance id begins."""
        disk = self.by_region[instance_id.partition("-")[0]]
        opened: Any = store_opener(disk, _running_process) if isinstance(disk, SharedDatabase) else disk.open_store
        return opened(path, instance_id=instance_id, **settings)  # type: ignore[no-any-return]  # of either store

    def usage_reader(self, _: object) -> "DiskUsageReader":
        """Replace auth's `UsageReader` by that of the region whose process is running."""
        return DiskUsageReader(self.by_region[region_of(_running_process())])


class DiskUsageReader:
    """Reads the totals that auth reports to its home region."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def close(self) -> None:
        """It has no thread."""

    async def unreported(self, region: str, until: float, limit: int) -> list[RegionTotal]:
        await asyncio.sleep(self._disk.rng.uniform(*COMMIT_DELAY_S))
        rows = self._disk.connection.execute(*unreported_statement(region, until, limit, SQLITE)).fetchall()
        await asyncio.sleep(self._disk.rng.uniform(*COMMIT_DELAY_S))
        return [
            RegionTotal(hour, tenant_id, key_id, model, tuple(counters), revision)
            for hour, tenant_id, key_id, model, *counters, revision in rows
        ]


def _running_process() -> ProcessLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop), "only processes of a world open stores"
    return loop
