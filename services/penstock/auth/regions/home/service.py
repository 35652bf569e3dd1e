"""RegionQuotaService: the streams of other regions to auth of the home region."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import structlog

from penstock.auth import metrics
from penstock.auth.authorizer import Authorizer
from penstock.auth.models.routes import RouteList
from penstock.auth.regions import frames
from penstock.auth.regions.catalog.catalog import Catalog, change_parts, whole_parts
from penstock.auth.regions.catalog.present import present_catalog
from penstock.auth.regions.home.granting import ShareGrants
from penstock.auth.regions.usage_receiver import UsageAnswer, UsageReceiver
from penstock.auth.store.store import StoreEvent
from penstock.chassis.errors import FailedPrecondition, InvalidArgument
from penstock.chassis.streams.link import Peer, accept_stream
from penstock.mesh.v1.region_quota_pb2 import FollowRequest, FollowResponse, RegionJoin
from penstock.mesh.v1.region_quota_pb2_grpc import RegionQuotaServiceServicer
from penstock.v1.stream_pb2 import Hello

log = structlog.get_logger()


class FollowerPeer:
    """The stream of one process of another region."""

    def __init__(self, peer: Peer[FollowResponse, FollowRequest]) -> None:
        self.peer = peer
        self.region = ""  # empty before its join

    def send(self, frame: FollowResponse) -> bool:
        return self.peer.send(frame)


class JoinCheck:
    """Which regions may follow this one."""

    def __init__(self, *, region: str, home: str, spending: tuple[str, ...], secrets_digest: bytes) -> None:
        """home: the region that keeps the tenants of `region`; empty: this one."""
        self.region = region
        self.home = home
        self._spending = spending
        self._secrets_digest = secrets_digest

    def check(self, join: RegionJoin) -> None:
        """Raise FailedPrecondition / NOT_HOME, REGION_UNKNOWN or SECRETS_DIFFER."""
        try:
            self._check(join)
        except FailedPrecondition as error:
            metrics.record_refused_join(error.reason)
            log.warning("region_refused", region=join.region, reason=error.reason)
            raise

    def _check(self, join: RegionJoin) -> None:
        if self.home not in ("", self.region):
            text = f"tenants of region {self.region} are kept by region {self.home}; follow that one"
            raise FailedPrecondition(text, reason="NOT_HOME")
        if join.region not in self._spending:
            text = f"region {self.region} has no spending region {join.region!r}; see PENSTOCK_AUTH_SPENDING_REGIONS"
            raise FailedPrecondition(text, reason="REGION_UNKNOWN")
        if join.secrets_digest != self._secrets_digest:
            text = f"PENSTOCK_AUTH_PEPPER or PENSTOCK_MESH_SECRET of region {join.region} differs from that of region"
            raise FailedPrecondition(f"{text} {self.region}; all regions need the same", reason="SECRETS_DIFFER")


class RegionQuotas(RegionQuotaServiceServicer):
    """Sends the catalog to other regions, and hands their frames to shares and usage."""

    def __init__(
        self,
        authorizer: Authorizer,
        routes: RouteList,
        hello: Hello,
        *,
        join_check: JoinCheck,
        grants: ShareGrants,
        usage: UsageReceiver,
    ) -> None:
        self._join_check = join_check
        self._grants = grants
        self._usage = usage
        self._authorizer = authorizer
        self._routes = routes
        self._hello = hello
        self._streams: dict[FollowerPeer, None] = {}  # in order of connection
        self._sent: Catalog = present_catalog(self._authorizer, self._routes)  # that all streams have

    @property
    def figures(self) -> dict[str, float]:
        return {
            "follower_streams": sum(bool(each.region) for each in self._streams),
            "share_changes": self._grants.changes,
            "excess_claims": self._grants.excess_claims,
        }

    async def Follow(  # type: ignore[override]  # reads and writes on its context, and yields nothing
        self, request_iterator: AsyncIterator[FollowRequest], context: Any
    ) -> None:
        async with accept_stream(context, FollowResponse, self._hello, tiers=("auth",), may_be_relayed=True) as peer:
            stream = FollowerPeer(peer)
            self._streams[stream] = None
            stream.send(self._owned())
            try:
                async for frame in peer:
                    self._on_frame(stream, frame)
            finally:
                del self._streams[stream]
                self._grants.on_stream_down(stream)
                if stream.region:
                    self._on_left(stream)

    def on_store_event(self, event: StoreEvent) -> None:
        """Partitions were taken, given or lost, or another process has changed the catalog."""
        self._grants.on_partitions_changed()
        self._send_all(self._owned())
        self.send_changes()

    def send_changes(self) -> None:
        """Send what has changed in the catalog since the last call."""
        present = present_catalog(self._authorizer, self._routes)
        if any(each.region for each in self._streams):
            for part in change_parts(self._sent, present):
                for stream in self._streams:
                    if stream.region:
                        stream.send(frames.catalog(part))
        self._sent = present

    async def drain(self) -> None:
        """End all streams, so that their processes use another replica.

        What these processes have on the way they send again, so that no slow or cut link delays the end of this one.
        """
        peers = [each.peer for each in self._streams]
        for peer in peers:
            peer.send_end("draining")
        await asyncio.gather(*(each.flush() for each in peers))
        for peer in peers:
            peer.close("draining")

    def _on_frame(self, stream: FollowerPeer, frame: FollowRequest) -> None:
        """Raises InvalidArgument, which ends the stream, or FailedPrecondition."""
        kind = frame.WhichOneof("frame")
        if kind == "join":
            self._join(stream, frame.join)
        elif not stream.region:
            raise InvalidArgument("the first frame after `hello` must be `join`", field="join")
        elif kind == "begin":
            self._grants.on_begin(stream, frame.begin)
        elif kind == "demand":
            self._grants.on_demand(stream, frame.demand)
        elif kind == "held":
            self._grants.on_held(stream, frame.held)
        elif kind == "usage":
            self._usage.receive(stream.region, frame.usage, _usage_answer(stream, frame.usage.number))

    def _join(self, stream: FollowerPeer, join: RegionJoin) -> None:
        if stream.region:
            raise InvalidArgument("a stream joins once", field="join")
        self._join_check.check(join)
        stream.send(frames.share_rules(self._grants.largest))
        self.send_changes()
        for part in whole_parts(self._sent):
            stream.send(frames.catalog(part))
        stream.region = join.region
        log.info("region_joined", region=join.region, peer=stream.peer.instance_id)

    def _on_left(self, stream: FollowerPeer) -> None:
        log.info("region_left", region=stream.region, peer=stream.peer.instance_id)
        if all(each.region != stream.region for each in self._streams):
            self._grants.on_region_left(stream.region)

    def _send_all(self, frame: FollowResponse) -> None:
        for stream in self._streams:
            stream.send(frame)

    def _owned(self) -> FollowResponse:
        return frames.owned_partitions(self._authorizer.served.frame())


def _usage_answer(stream: FollowerPeer, number: int) -> UsageAnswer:
    return UsageAnswer(
        on_stored=lambda: stream.send(frames.usage_confirmed(number)),
        on_refused=lambda wrong: stream.send(frames.usage_refused(number, wrong)),
    )
