"""The streams of all edges, and the frames that go to each of them."""

from collections.abc import Callable
from typing import TypeAlias

from penstock.auth import frames
from penstock.auth.edge_sessions import EdgeSessions
from penstock.auth.identity.identity_keys import IdentityKeyRing
from penstock.auth.identity.residency import Residency
from penstock.auth.models.routes import RouteList
from penstock.auth.partitions.owned import ServedPartitions
from penstock.chassis.streams.link import Peer
from penstock.mesh.v1.admission_pb2 import AdmitRequest, AdmitResponse

IDENTITY_KEYS_INTERVAL_S = 60.0  # s between frames, so that edges follow the clock of auth

EdgePeer: TypeAlias = Peer[AdmitResponse, AdmitRequest]


class EdgeStreams:
    """Sends every edge the frames that answer none: owned partitions, routes, residency, store state,
    identity keys, the end."""

    def __init__(
        self,
        sessions: EdgeSessions,
        served: ServedPartitions,
        identity_keys: IdentityKeyRing | None,  # None: no proxy asks this process
        clock: Callable[[], float],
        on_count: Callable[[int], None],
        *,
        residency: Residency,
        routes: RouteList | None = None,  # None: edges receive none
    ) -> None:
        """`on_count` receives the number of connected edges at each change."""
        self._routes = routes
        if routes is not None:
            routes.on_changed = self._send_routes
        self._residency = residency
        residency.on_changed = self._send_residency
        self._on_count = on_count
        self._sessions = sessions
        self._served = served
        self._identity_keys = identity_keys
        self._identity_keys_due = 0.0  # s
        self._clock = clock
        self._peers: dict[EdgePeer, None] = {}  # in order of connection, so that fault worlds replay exactly

    def add(self, peer: EdgePeer, *, is_store_available: bool) -> None:
        self._sessions.on_connected(peer.hello.instance_id)
        self._peers[peer] = None
        self._on_count(len(self._sessions))
        if self._served.is_partitioned:
            peer.send(frames.owned_partitions(self._served.frame()))
        if self._routes is not None:
            peer.send(frames.routes(self._routes))
        peer.send(frames.residency(self._residency.digest))
        if not is_store_available:
            peer.send(frames.store_state(is_unavailable=True))
        self._send_identity_keys(peer)

    def remove(self, peer: EdgePeer) -> None:
        del self._peers[peer]
        self._sessions.on_disconnected(peer.hello.instance_id, self._clock())
        self._on_count(len(self._sessions))

    def send_owned_partitions(self) -> None:
        self._send_all(frames.owned_partitions(self._served.frame()))

    def send_store_state(self, *, is_available: bool) -> None:
        self._send_all(frames.store_state(is_unavailable=not is_available))

    def end(self, reason: str) -> None:
        self._send_all(frames.end(reason))

    def rotate_identity_keys(self, now: float) -> None:
        if self._identity_keys and (self._identity_keys.rotate(now) or now >= self._identity_keys_due):
            self._identity_keys_due = now + IDENTITY_KEYS_INTERVAL_S
            for peer in self._peers:
                self._send_identity_keys(peer)

    def _send_routes(self) -> None:
        if self._routes is not None:
            self._send_all(frames.routes(self._routes))

    def _send_residency(self) -> None:
        self._send_all(frames.residency(self._residency.digest))

    def _send_all(self, frame: AdmitResponse) -> None:
        for peer in self._peers:
            peer.send(frame)

    def _send_identity_keys(self, peer: EdgePeer) -> None:
        if self._identity_keys and peer.hello.tier == "edge":
            peer.send(AdmitResponse(identity_keys=self._identity_keys.frame(self._clock())))
