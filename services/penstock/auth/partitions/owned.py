"""The partitions whose tenants this process admits at present."""

from collections.abc import Iterable, Mapping

from penstock.chassis.errors import Unavailable
from penstock.mesh.partitions import PARTITIONS, partition_of
from penstock.mesh.v1.admission_pb2 import Identity, OwnedPartitions


class NotOwner(Unavailable):
    """Another replica admits this tenant."""

    default_reason = "NOT_OWNER"

    def __init__(self, identity: Identity | None = None) -> None:
        super().__init__("another replica of auth admits this tenant")
        self.identity = identity


class ServedPartitions:
    """Partitions with their epochs. With a store of one process, these are all, for as long as it runs."""

    def __init__(self, epochs: Mapping[int, int] | None = None) -> None:
        """`epochs` by partition; None for a store of one process."""
        self.is_partitioned = epochs is not None
        self._epochs = dict(epochs if epochs is not None else dict.fromkeys(range(PARTITIONS), 0))

    def __len__(self) -> int:
        return len(self._epochs)

    def __contains__(self, partition: int) -> bool:
        return partition in self._epochs

    @property
    def epochs(self) -> Mapping[int, int]:
        """Epochs of the served partitions."""
        return self._epochs

    def has_tenant(self, tenant_id: str) -> bool:
        return not self.is_partitioned or partition_of(tenant_id) in self._epochs

    def add(self, epochs: Mapping[int, int]) -> None:
        self._epochs |= epochs

    def remove(self, partitions: Iterable[int]) -> frozenset[int]:
        """Remove partitions; return those that were served."""
        removed = frozenset(partitions) & self._epochs.keys()
        for each in removed:
            del self._epochs[each]
        return removed

    def frame(self) -> OwnedPartitions:
        owned = sorted(self._epochs.items())
        return OwnedPartitions(partitions=[each for each, _ in owned], epochs=[epoch for _, epoch in owned])
