"""This worker's session with the one scheduler that places on it.

It attaches to one of the schedulers at a time: whenever the stream is refused, cut or ended, the next attempt goes to
the next address. It is attached only while its engine can take work, or while it has somebody to blame for its crashed
engine: then with no capacity, and says nothing else.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc

from penstock.chassis.channels import AddressWatch, channel
from penstock.chassis.lifecycle import background
from penstock.chassis.streams import Link
from penstock.mesh.v1 import scheduler_pb2 as pb
from penstock.mesh.v1.scheduler_pb2_grpc import SchedulerServiceStub
from penstock.v1.stream_pb2 import Hello
from penstock.worker.blames import Blame
from penstock.worker.cache_news import CacheChange
from penstock.worker.effects import LeasesReleased
from penstock.worker.frames import blamed_frame, cache_frame, progress_frame, released_frame, report_frame
from penstock.worker.load import Load
from penstock.worker.run import Served

PART_TIMEOUT = 1.0  # s; for the scheduler to close the stream after our `end`


class Attachment:
    """`run` keeps the session between `attach` and `detach`; the other methods are plain calls on the loop."""

    def __init__(
        self,
        schedulers: Sequence[str],
        hello: Hello,
        *,
        profile: Callable[[], pb.Profile],
        on_frame: Callable[[pb.AttachResponse], None],
    ) -> None:
        """`profile` is asked at each attachment: it lists the leases that run by then, or nothing but blames."""
        self._watch = AddressWatch(schedulers)
        self._rank = {address: float(place) for place, address in enumerate(schedulers)}
        self._profile = profile
        self._addresses: list[str] = []
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._turn = 0
        self._known, self._wanted, self._unwanted, self._down = (asyncio.Event() for _ in range(4))
        self._load: Load | None = None
        self._told: Load | None = None
        self._parting = ""
        self._is_open = False  # introduced as one that takes work
        self._is_parting = False
        self._link = Link[pb.AttachRequest, pb.AttachResponse](
            "scheduler",
            self._call_next,
            pb.AttachRequest,
            hello,
            on_frame=on_frame,
            on_up=self._meet,
            on_down=self._lose,
        )

    @property
    def is_up(self) -> bool:
        """Whether a scheduler takes it for one that takes work."""
        return self._is_open and self._link.is_up

    def attach(self) -> None:
        """Be attached as what `profile` says by now."""
        self._unwanted.clear()
        self._wanted.set()
        if self._link.is_up and not self._is_parting:
            self._introduce()

    def detach(self, reason: str) -> None:
        """Have the scheduler forget this worker; leases it announced until then still arrive.

        It is the first to be asked again: it knows whom this worker blamed.
        """
        self._turn -= self._link.is_up and not self._is_parting
        self._is_parting = self._link.is_up
        self._parting = reason
        self._load = None
        self._wanted.clear()
        self._unwanted.set()

    def started(self, lease_id: str) -> None:
        self._say(pb.AttachRequest(started=pb.Started(lease_id=lease_id)))

    def released(self, released: LeasesReleased) -> None:
        self._say(released_frame(released))

    def blamed(self, blames: Sequence[Blame]) -> None:
        """Tell what `profile` would tell as well, at an attachment yet to come."""
        self._say(blamed_frame(blames))

    def progress(self, served: Sequence[Served]) -> None:
        self._say(progress_frame(served))

    def cache_changed(self, change: CacheChange) -> None:
        self._say(cache_frame(change))

    def report(self, load: Load) -> None:
        """Tell the scheduler where that is news; to be called at most once per engine step."""
        self._load = load
        if load.is_news_after(self._told) and self._say(report_frame(load)):
            self._told = load

    def _say(self, frame: pb.AttachRequest) -> bool:
        return self._is_open and self._link.send(frame)

    async def run(self) -> None:
        async with background(self._follow_addresses()):
            await self._known.wait()
            try:
                while True:
                    await self._wanted.wait()
                    async with background(self._link.run()):
                        await self._unwanted.wait()
                        await self._part()
            finally:
                for each in self._channels.values():
                    await each.close()

    async def _part(self) -> None:
        if not self._link.is_up:
            return
        self._link.end(self._parting)
        with suppress(TimeoutError):
            async with asyncio.timeout(PART_TIMEOUT):
                await self._down.wait()

    async def _follow_addresses(self) -> None:
        async for present in self._watch:
            self._addresses = sorted(present, key=self._rank_of) or self._addresses
            if self._addresses:
                self._known.set()

    def _rank_of(self, address: str) -> float:
        """As listed; addresses behind a name in an order of our own, so that a fleet spreads over them."""
        return self._rank.setdefault(address, len(self._rank) + random.random())  # noqa: S311  # spreads, guards nothing

    def _call_next(self) -> grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse]:
        address = self._addresses[self._turn % len(self._addresses)]
        self._turn += 1
        if address not in self._channels:
            self._channels[address] = channel(address)
        return SchedulerServiceStub(self._channels[address]).Attach()

    def _lose(self, _: str) -> None:
        self._is_open = self._is_parting = False
        self._down.set()

    def _meet(self, _: Hello) -> None:
        if self._wanted.is_set():  # otherwise unwanted while it connected: `run` is about to end it
            self._down.clear()
            self._introduce()

    def _introduce(self) -> None:
        self._told = None
        profile = self._profile()
        self._link.send(pb.AttachRequest(profile=profile))
        self._is_open = bool(profile.model)
        if self._load:
            self.report(self._load)
