"""Routes: which replica of auth admits the tenants of each partition."""

from collections.abc import Iterable, Mapping, Sequence

from penstock.chassis.streams.endpoint import FrameOutOfRange
from penstock.mesh.partitions import PARTITIONS
from penstock.mesh.v1.admission_pb2 import OwnedPartitions

ALL_PARTITIONS: Mapping[int, int] = dict.fromkeys(range(PARTITIONS), 0)  # of a replica that names none


def epochs_of(frame: OwnedPartitions) -> dict[int, int]:
    """Return the epoch of each partition of a frame. Raises FrameOutOfRange; the range of each field was checked."""
    if len(frame.partitions) != len(frame.epochs):
        lengths = len(frame.partitions), len(frame.epochs)
        text = f"OwnedPartitions.partitions and epochs are of {lengths} entries; allowed: as many of each"
        raise FrameOutOfRange(text, field="epochs")
    if any(former >= later for former, later in zip(frame.partitions, frame.partitions[1:], strict=False)):
        text = f"OwnedPartitions.partitions is {list(frame.partitions)}; allowed: ascending"
        raise FrameOutOfRange(text, field="partitions")
    return dict(zip(frame.partitions, frame.epochs, strict=True))


class PartitionRoutes:
    """The owner of each partition: of the replicas that claim it in their latest frame, the one with the highest epoch.

    At equal epochs the present owner stays, then the first address in sorted order is taken. Each method that changes
    claims returns the partitions whose owner or epoch changed, in ascending order.
    """

    def __init__(self) -> None:
        self._claims: dict[str, dict[int, int]] = {}  # epochs by partition, by address
        self._denied: dict[str, dict[int, int]] = {}  # claims that their replica has denied since it sent them
        self._owners = [""] * PARTITIONS
        self._epochs = [0] * PARTITIONS

    def __repr__(self) -> str:
        owned = {address: len(self.owned_by(address)) for address in sorted(self._claims)}
        return f"<PartitionRoutes {owned}, {self.unowned} unowned>"

    @property
    def unowned(self) -> int:
        """Number of partitions without an owner."""
        return self._owners.count("")

    def owner(self, partition: int) -> str:
        """Return the address of the owner. Empty if no replica claims the partition."""
        return self._owners[partition]

    def owned_by(self, address: str) -> list[int]:
        return [partition for partition in range(PARTITIONS) if self._owners[partition] == address]

    def replace(self, address: str, epochs: Mapping[int, int]) -> list[int]:
        """Replace the claims of a replica."""
        former, self._claims[address] = self._claims.get(address, {}), dict(epochs)
        self._denied.pop(address, None)
        return self._update({*former, *epochs})

    def remove(self, address: str) -> list[int]:
        """Remove the claims of a replica whose stream has ended."""
        self._denied.pop(address, None)
        return self._update(self._claims.pop(address, {}))

    def deny(self, address: str, partition: int) -> list[int]:
        """Remove a claim that its replica has contradicted. Its next frame decides."""
        claims = self._claims.get(address, {})
        if partition not in claims:
            return []
        self._denied.setdefault(address, {})[partition] = claims.pop(partition)
        return self._update((partition,))

    def restore_denied(self) -> list[int]:
        """Restore claims that were denied, in case a late answer of their replica contradicted a newer claim."""
        denied, self._denied = self._denied, {}
        for address, claims in denied.items():
            self._claims[address].update(claims)
        return self._update({partition for claims in denied.values() for partition in claims})

    def _update(self, partitions: Iterable[int]) -> list[int]:
        return [partition for partition in sorted(partitions) if self._update_one(partition)]

    def _update_one(self, partition: int) -> bool:
        former = self._owners[partition], self._epochs[partition]
        found = self._claimants(partition)
        epoch = max((epoch for epoch, _ in found), default=0)
        highest = [address for each, address in found if each == epoch]
        owner = former[0] if former[0] in highest else min(highest, default="")
        self._owners[partition], self._epochs[partition] = owner, epoch
        return former != (owner, epoch)

    def _claimants(self, partition: int) -> Sequence[tuple[int, str]]:
        return [(claims[partition], address) for address, claims in self._claims.items() if partition in claims]
