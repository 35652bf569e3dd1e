"""Held shares: what this region holds of the limits of each scope. No I/O."""

from collections.abc import Callable, Iterable

from penstock.auth.regions.share import FLOOR, WHOLE, LargestShare, ScopeKey, Share, ShareRow
from penstock.mesh.partitions import partition_of


class HeldShares:
    """Shares of a region that follows its home. A scope without a row has the smallest share.

    A share stays in force without contact to the home region for as long as the contact is missing.

    Three rules of the exchange keep the sum of all shares within the whole:

    - A change is applied at once, and is confirmed once it is stored.
    - Shares of a partition are taken from one stream at a time, that of its latest `begin`.
    - A process that gives a partition away and takes it again begins its exchange on a new stream: a share that was
      sent before may still be on its way on the former one.
    """

    def __init__(self, region: str) -> None:
        self.largest = LargestShare()
        self._region = region
        self._shares: dict[int, dict[ScopeKey, Share]] = {}  # by partition
        self._unstored: dict[ScopeKey, tuple[ShareRow, Share]] = {}  # latest change, and the most the store may have

    def __repr__(self) -> str:
        return f"<HeldShares {sum(map(len, self._shares.values()))} scopes>"

    def restore(self, rows: Iterable[ShareRow]) -> None:
        """Set the shares of partitions whose state was read. Rows of other regions have no effect."""
        for row in rows:
            if row.region == self._region:
                self._put(row)

    def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        """Forget the shares of tenants: they were deleted, or another process owns their partitions."""
        for shares in self._shares.values():
            for key in [each for each in shares if is_forgotten(each[0])]:
                del shares[key]
        self._unstored = {key: each for key, each in self._unstored.items() if not is_forgotten(key[0])}

    def remove(self, tenant_id: str, scope: str) -> None:
        """Forget the share of a deleted key."""
        self._shares.get(partition_of(tenant_id), {}).pop((tenant_id, scope), None)
        self._unstored.pop((tenant_id, scope), None)

    def of(self, tenant_id: str, scope: str) -> Share:
        return self._shares.get(partition_of(tenant_id), {}).get((tenant_id, scope), FLOOR)

    def count(self, partition: int) -> int:
        """Return the number of scopes of a partition of which the home region has granted a share."""
        return len(self._shares.get(partition, ()))

    def rows_of(self, partition: int) -> list[ShareRow]:
        """Return what `begin` reports: the most that this region spends now, or after a restart."""
        return [
            ShareRow(*key, self._region, *share.at_least(self._unstored[key][1] if key in self._unstored else share))
            for key, share in self._shares.get(partition, {}).items()
        ]

    def on_share(self, row: ShareRow, in_use: Share) -> ShareRow:
        """Set a share. Return what is held from now on: store it, apply it, then confirm it.

        A share falls at most to what is `in_use`. Call `on_stored` with the row once it is stored.
        """
        key = row.tenant_id, row.scope
        former = self.of(*key)
        held = row.share.at_most(WHOLE).at_least(FLOOR).at_least(in_use.at_most(former))
        most = former.at_least(self._unstored[key][1]) if key in self._unstored else former
        row = ShareRow(*key, self._region, *held)
        self._unstored[key] = row, most
        self._put(row)
        return row

    def on_stored(self, row: ShareRow) -> None:
        """Count a row of `on_share` as stored."""
        key = row.tenant_id, row.scope
        if key in self._unstored and self._unstored[key][0] is row:
            del self._unstored[key]

    def _put(self, row: ShareRow) -> None:
        shares = self._shares.setdefault(partition_of(row.tenant_id), {})
        shares[row.tenant_id, row.scope] = row.share.at_most(WHOLE).at_least(FLOOR)
