"""Client of routing: learns whether the own region is drained."""

import asyncio
from collections.abc import Sequence

import structlog

from penstock.chassis.channels import resolve
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.chassis.streams.link import Link
from penstock.edge.regions.drain import RegionDrain
from penstock.mesh.v1.routing_pb2 import WatchRegionRequest, WatchRegionResponse
from penstock.mesh.v1.routing_pb2_grpc import RoutingServiceStub
from penstock.v1.stream_pb2 import Hello

log = structlog.get_logger()

RETRY_INTERVAL_S = 0.5  # between two streams; edges need no routing to serve


class DrainWatch:
    """One stream to one routing process at a time. If it is lost, the last state stays in force."""

    def __init__(
        self, targets: Sequence[str], drain: RegionDrain, hello: Hello, *, region: str, dialer: Dialer = PLAINTEXT
    ) -> None:
        """targets: host:port or dns:///name:port; without one, `run` returns at once. region: the own one."""
        self._targets = targets
        self._drain = drain
        self._hello = hello
        self._region = region
        self._dialer = dialer
        self.is_up = False

    async def run(self) -> None:
        """Follow the processes in turn, until cancelled."""
        while self._targets:
            for address in await self._addresses():
                await self._follow(address)
                await asyncio.sleep(RETRY_INTERVAL_S)

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        return {"region_drained": self._drain.is_on, "routing_links_up": self.is_up}

    async def _addresses(self) -> list[str]:
        found = await asyncio.gather(*map(resolve, self._targets), return_exceptions=True)
        addresses = [each for result in found if not isinstance(result, BaseException) for each in result]
        if not addresses:
            await asyncio.sleep(RETRY_INTERVAL_S)
        return addresses

    async def _follow(self, address: str) -> None:
        async with self._dialer.channel(address, "routing") as to_routing:
            link = Link[WatchRegionRequest, WatchRegionResponse](
                f"routing {address}",
                RoutingServiceStub(to_routing).WatchRegion,
                WatchRegionRequest,
                self._hello,
                on_frame=self._on_frame,
                on_up=lambda _: self._set_up(is_up=True),
                on_down=lambda _: self._set_up(is_up=False),
                check_hello=self._dialer.hello_check("routing"),
            )
            await link.run_once()

    def _set_up(self, *, is_up: bool) -> None:
        self.is_up = is_up

    def _on_frame(self, frame: WatchRegionResponse) -> None:
        if frame.WhichOneof("frame") != "state":
            return
        if frame.state.region != self._region:
            log.warning("region_state_ignored", region=frame.state.region, own=self._region)
        elif self._drain.set(is_on=frame.state.drained):
            log.info("region_drained" if frame.state.drained else "region_restored", region=self._region)
