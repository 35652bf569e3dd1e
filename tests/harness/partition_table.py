"""Partitions and leases in memory, with a clock of their own, and replicas that follow their keepers."""

from penstock.auth.partitions.keeper import Member, PartitionKeeper, PartitionRow, View
from penstock.auth.store.store import CatalogChanged, Giving, HandedOver, Lost, StoredState, Taken
from penstock.mesh.partitions import PARTITIONS

EMPTY = StoredState(tenants=[], balances={}, keys=[], reservations=[], lost=[], grant_uses=[], charged=[])


class TableUnavailable(Exception):
    """The store does not answer."""


class PartitionDatabase:
    """The state that all replicas share."""

    def __init__(self):
        self.now = 0.0
        self.rows = {partition: PartitionRow("", 0) for partition in range(PARTITIONS)}
        self.leases = {}  # (until, presence) by owner
        self.catalog_version = 0
        self.fails_to_read = False
        self.is_unavailable = False

    @property
    def members(self):
        live = {name: Member(presence, until - self.now) for name, (until, presence) in self.leases.items()}
        return {name: each for name, each in live.items() if each.lease_left > 0}

    def owned(self, owner):
        return {partition for partition, row in self.rows.items() if row.owner == owner}


class MemoryTable:
    """The table of one replica. See `PartitionTable`."""

    def __init__(self, database, owner):
        self.database = database
        self.owner = owner
        self.takes = []

    def renew(self, ttl, presence):
        if self.database.is_unavailable:
            raise TableUnavailable
        self.database.leases[self.owner] = (self.database.now + ttl, presence)
        return View(dict(self.database.rows), self.database.members, self.database.catalog_version)

    def take(self, partitions, former):
        self.takes.append((set(partitions), set(former)))
        rows = self.database.rows
        others = self.database.members.keys() - {self.owner}
        taken = [each for each in partitions if rows[each].owner not in others]
        for each in taken:
            rows[each] = PartitionRow(self.owner, rows[each].epoch + 1)
        return {each: rows[each].epoch for each in taken}

    def read(self, partitions):
        if self.database.fails_to_read:
            raise TableUnavailable
        return EMPTY


class KeptReplica:
    """A keeper and the process around it, which serves partitions and writes `Release` for those that it must."""

    def __init__(self, database, owner):
        self.database = database
        self.table = MemoryTable(database, owner)
        self.events = []
        self.served = {}  # epochs by partition, as the process has handled the events
        self.to_release = set()
        self.has_handed_over = False
        self.keeper = PartitionKeeper(owner, self._on_event)

    @property
    def owner(self):
        return self.keeper.owner

    def look(self):
        now = self.database.now
        self.keeper.look(self.table, now, lambda: now)

    def release(self):
        """Commit `Release` for the partitions that the process was told to give or has lost."""
        for each in self.to_release:
            if self.database.rows[each].owner == self.owner:
                self.database.rows[each] = PartitionRow("", self.database.rows[each].epoch)
        released, self.to_release = self.to_release, set()
        if released:
            self.keeper.on_released(released)

    def _on_event(self, event):
        self.events.append(event)
        match event:
            case Taken(epochs, _):
                self.served |= epochs
            case Giving(partitions) | Lost(partitions):
                for each in partitions:
                    self.served.pop(each, None)
                self.to_release |= partitions
            case HandedOver():
                self.has_handed_over = True
            case CatalogChanged():
                pass
