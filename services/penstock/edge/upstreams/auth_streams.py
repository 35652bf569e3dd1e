"""Streams to all replicas of auth, and the owner of each partition among them."""

from collections.abc import Callable, Sequence
from zlib import crc32

from penstock.chassis.channels import PeerSet
from penstock.chassis.security.channels import Dialer
from penstock.chassis.streams.link import Link
from penstock.edge.auth_fallback.watch import OutageWatch
from penstock.edge.upstreams.partition_routes import ALL_PARTITIONS, PartitionRoutes, epochs_of
from penstock.mesh.v1.admission_pb2 import AdmitRequest, AdmitResponse
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceStub
from penstock.v1.stream_pb2 import Hello

# s; a settlement precedes the next reservation of its stream. It frees tokens for other edges within this time.
SETTLEMENT_DELAY_S = 0.1

AuthStream = Link[AdmitRequest, AdmitResponse]


class AuthStreams:
    """One stream to each replica. A replica without `partitioned` in its hello owns all partitions, with epoch 0.

    `on_connected(address)` and `on_lost(address)` are called once for each stream, and `on_owners_changed` with the
    partitions whose owner or epoch changed. `on_frame(address, kind, frame)` receives all frames except those about
    owners and ends.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        hello: Hello,
        watch: OutageWatch,
        *,
        dialer: Dialer,
        capacity: int,
        on_frame: Callable[[str, str | None, AdmitResponse], None],
        on_connected: Callable[[str], None],
        on_lost: Callable[[str], None],
        on_owners_changed: Callable[[frozenset[int]], None],
    ) -> None:
        self._hello = hello
        self._watch = watch
        self._dialer = dialer
        self._capacity = capacity
        self._on_frame = on_frame
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._on_owners_changed = on_owners_changed
        self._links: dict[str, AuthStream] = {}
        self._connected: set[str] = set()  # replicas that have not sent `end`
        self._routes = PartitionRoutes()
        self._peers = PeerSet(addresses, self._open)

    @property
    def is_up(self) -> bool:
        return bool(self._connected)

    @property
    def links_up(self) -> int:
        return sum(link.is_up for link in self._links.values())

    @property
    def unowned_partitions(self) -> int:
        return self._routes.unowned

    async def run(self) -> None:
        await self._peers.run()

    def owner(self, partition: int) -> str:
        """Return the address of the owner of a partition. Empty if there is none."""
        return self._routes.owner(partition)

    def owned_by(self, address: str) -> frozenset[int]:
        return frozenset(self._routes.owned_by(address))

    def any_replica(self, request_id: str) -> str:
        """Return a replica that responds, for a caller whose tenant is unknown. Empty if there is none.

        The hash of the id spreads the requests, because each costs an authentication that no cache avoids.
        """
        addresses = sorted(filter(self._watch.is_responsive, self._connected))
        return addresses[crc32(request_id.encode()) % len(addresses)] if addresses else ""

    def send(self, address: str, frame: AdmitRequest) -> bool:
        """Send a frame to a replica. Returns whether it is connected; an empty address is not."""
        return address in self._connected and self._links[address].send(frame)

    def send_to_owner(self, partition: int, frame: AdmitRequest) -> bool:
        return self.send(self._routes.owner(partition), frame)

    def send_later(self, partition: int, frame: AdmitRequest) -> None:
        """Send a settlement with the next frame to the owner of its partition, or after `SETTLEMENT_DELAY_S`."""
        if (address := self._routes.owner(partition)) in self._connected:
            self._links[address].send(frame, max_delay_s=SETTLEMENT_DELAY_S)

    def expedite_settlements(self) -> None:
        """Send the settlements that are delayed, because no other frame may follow."""
        for link in self._links.values():
            link.expedite()

    def deny(self, address: str, partition: int) -> None:
        """A replica has answered `not_owner`. If it is the owner, its next frame about its partitions is awaited."""
        if self._routes.owner(partition) == address:
            self._apply(self._routes.deny(address, partition))

    def restore_denied(self) -> None:
        """Send frames again to replicas that have denied a partition and still claim it."""
        self._apply(self._routes.restore_denied())

    async def _open(self, address: str) -> None:
        async with self._dialer.channel(address, "auth") as to_auth:
            link = self._links[address] = AuthStream(
                f"auth {address}",
                lambda: AdmissionServiceStub(to_auth).Admit(),
                AdmitRequest,
                self._hello,
                on_frame=lambda frame: self._receive(address, frame),
                on_up=lambda hello: self._on_up(address, hello),
                on_down=lambda _: self._lose(address),
                capacity=self._capacity,
                check_hello=self._dialer.hello_check("auth"),
            )
            try:
                await link.run()
            finally:
                del self._links[address]

    def _on_up(self, address: str, hello: Hello) -> None:
        self._connected.add(address)
        self._watch.on_connected(address)
        if not hello.partitioned:
            self._apply(self._routes.replace(address, ALL_PARTITIONS))
        self._on_connected(address)

    def _receive(self, address: str, frame: AdmitResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "owned_partitions":
            peer = self._links[address].peer
            if peer and peer.partitioned and address in self._connected:
                self._apply(self._routes.replace(address, epochs_of(frame.owned_partitions)))
        elif kind == "end":
            self._lose(address, on_purpose=True)
        else:
            self._on_frame(address, kind, frame)

    def _lose(self, address: str, *, on_purpose: bool = False) -> None:
        """Use a replica no longer whose stream is lost, or which has ended it (`on_purpose`)."""
        if address not in self._connected:
            return
        self._connected.discard(address)
        self._watch.on_disconnected(address, on_purpose=on_purpose)
        self._apply(self._routes.remove(address))
        self._on_lost(address)
        self._watch.check()

    def _apply(self, changed: list[int]) -> None:
        if changed:
            self._watch.on_owners_changed({partition: self._routes.owner(partition) for partition in changed})
            self._on_owners_changed(frozenset(changed))
            self._watch.check()
