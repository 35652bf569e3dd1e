"""One stream of this process to a process of auth in the home region."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.auth.regions.catalog.catalog import Catalog, CatalogReceiver
from penstock.chassis.errors import InvalidArgument, PenstockError
from penstock.chassis.security.channels import Dialer
from penstock.chassis.streams.endpoint import FrameOutOfRange
from penstock.chassis.streams.link import Link
from penstock.mesh.v1.region_quota_pb2 import (
    FollowRequest,
    FollowResponse,
    RegionJoin,
    Share,
    ShareRules,
    UsageRefused,
)
from penstock.mesh.v1.region_quota_pb2_grpc import RegionQuotaServiceStub
from penstock.v1.stream_pb2 import Hello


class StreamListener(Protocol):
    """Receives the events of streams. Frames that it refuses with InvalidArgument cut their stream."""

    def on_up(self, stream: "HomeStream") -> None: ...

    def on_owned(self, stream: "HomeStream") -> None:
        """The partitions of the home replica have changed."""

    def on_catalog(self, stream: "HomeStream") -> None:
        """The catalog of the stream is whole, or has changed."""

    def on_share(self, stream: "HomeStream", share: Share) -> None: ...

    def on_share_rules(self, stream: "HomeStream", rules: ShareRules) -> None: ...

    def on_usage_confirmed(self, stream: "HomeStream", number: int) -> None: ...

    def on_usage_refused(self, stream: "HomeStream", refused: UsageRefused) -> None: ...

    def on_down(self, stream: "HomeStream") -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeAddress:
    """How to reach the home region, and what this process sends first."""

    door: str  # region door of its proxies
    dialer: Dialer
    hello: Hello
    join: RegionJoin


@dataclass(eq=False)
class HomeStream:
    """A stream from its start to its end. It is not opened again."""

    home: HomeAddress
    listener: StreamListener
    instance_id: str = ""  # of the process in the home region; empty before its hello
    epochs: dict[int, int] = field(default_factory=dict)  # of the partitions that it owns
    receiver: CatalogReceiver = field(default_factory=CatalogReceiver)
    end_reason: str = ""
    is_leaving: bool = False  # ended by this process
    # Set once the partitions of the process are known, or the stream has ended.
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    _link: Link[FollowRequest, FollowResponse] | None = None

    @property
    def catalog(self) -> Catalog | None:
        """The catalog of the stream; None before it is whole."""
        return self.receiver.catalog

    @property
    def is_up(self) -> bool:
        return not self.is_leaving and self._link is not None and self._link.is_up

    async def run(self) -> None:
        """Run the stream to its end, which the listener is told if it was up."""
        try:
            async with self.home.dialer.channel(self.home.door, "envoy") as to_home:
                self._link = Link(
                    f"home {self.home.door}",
                    lambda: RegionQuotaServiceStub(to_home).Follow(),
                    FollowRequest,
                    self.home.hello,
                    on_frame=self._on_frame,
                    on_up=self._on_up,
                    on_down=self._on_down,
                    on_rejected=self._on_rejected,
                    is_quiet=True,  # the follower logs changes of its state alone
                    check_hello=self.home.dialer.hello_check("auth"),  # behind the proxy whose certificate is verified
                )
                await self._link.run_once()
        finally:
            self.settled.set()

    def send(self, frame: FollowRequest) -> bool:
        return self._link is not None and self._link.send(frame)

    def leave(self, reason: str) -> None:
        """End the stream. Nothing is received on it any more."""
        self.is_leaving = True
        self.end_reason = self.end_reason or reason
        if self._link:
            self._link.close(reason)

    def _on_up(self, hello: Hello) -> None:
        self.instance_id = hello.instance_id
        self.send(FollowRequest(join=self.home.join))
        self.listener.on_up(self)

    def _on_down(self, reason: str) -> None:
        self.end_reason = self.end_reason or reason
        self.listener.on_down(self)

    def _on_rejected(self, error: PenstockError) -> None:
        self.end_reason = self.end_reason or f"{error.reason}: {error.message}"

    def _on_frame(self, frame: FollowResponse) -> None:
        if self.is_leaving:
            return
        try:
            self._apply(frame)
        except InvalidArgument as error:
            raise FrameOutOfRange(error.message) from error

    def _apply(self, frame: FollowResponse) -> None:
        match frame.WhichOneof("frame"):
            case "owned_partitions":
                owned = frame.owned_partitions
                if len(owned.partitions) != len(owned.epochs):
                    raise InvalidArgument("each owned partition has an epoch", field="owned_partitions.epochs")
                self.epochs = dict(zip(owned.partitions, owned.epochs, strict=True))
                self.listener.on_owned(self)
                self.settled.set()
            case "catalog":
                if self.receiver.on_part(frame.catalog):
                    self.listener.on_catalog(self)
            case "share":
                self.listener.on_share(self, frame.share)
            case "share_rules":
                self.listener.on_share_rules(self, frame.share_rules)
            case "usage_confirmed":
                self.listener.on_usage_confirmed(self, frame.usage_confirmed.number)
            case "usage_refused":
                self.listener.on_usage_refused(self, frame.usage_refused)


StreamFactory = Callable[[StreamListener], HomeStream]
