"""What every scheduler hears of a worker whose engine crashed: the one that it is attached to may be out of hearing."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc

from penstock.chassis.channels import PeerSet, channel
from penstock.chassis.lifecycle import background
from penstock.chassis.streams import Link
from penstock.mesh.v1 import scheduler_pb2 as pb
from penstock.mesh.v1.scheduler_pb2_grpc import SchedulerServiceStub
from penstock.v1.stream_pb2 import Hello
from penstock.worker.blames import Blame
from penstock.worker.frames import outcry_frame

SchedulerLink = Link[pb.AttachRequest, pb.AttachResponse]
Call = grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse]

LAST_WORD = 2.0  # s in which a scheduler hears how it ended; who does not lets go of suspects when their time is over


class Outcry:
    """Holds streams for as long as there are suspects: a scheduler that stands still would keep it to itself for two
    seconds, and one that is cut off from its worker for longer, while others place what the worker is about to try.

    `blamed` returns all that is known, whenever it is asked.
    """

    def __init__(self, schedulers: Sequence[str], hello: Hello, blamed: Callable[[], Sequence[Blame]]) -> None:
        self._hello = hello
        self._blamed = blamed
        self._told: set[tuple[int, bool]] = set()
        self._links: set[SchedulerLink] = set()
        self._begun, self._over = asyncio.Event(), asyncio.Event()
        self._peers = PeerSet(schedulers, self._cry)

    @property
    def is_on(self) -> bool:
        return self._begun.is_set()

    def tell(self) -> None:
        """Tell what is news: the first suspect begins it, and it ends with the last."""
        blames = self._blamed()
        known = {(each.fingerprint, each.is_guilty) for each in blames}
        if known == self._told:
            return
        self._told = known
        for link in self._links:
            link.send(outcry_frame(blames))
        if all(each.is_guilty for each in blames):
            self._begun.clear()
            self._over.set()
        else:
            self._over.clear()
            self._begun.set()

    async def run(self) -> None:
        await self._peers.run()

    async def _cry(self, address: str) -> None:
        async with channel(address) as to_scheduler:
            while True:
                await self._begun.wait()
                await self._hold(address, lambda: SchedulerServiceStub(to_scheduler).Attach())

    def _greet(self, link: SchedulerLink) -> None:
        link.send(outcry_frame(self._blamed()))

    async def _hold(self, address: str, call: Callable[[], Call]) -> None:
        """Be heard there until all is known."""
        left = asyncio.Event()
        link = SchedulerLink(
            f"scheduler {address}",
            call,
            pb.AttachRequest,
            self._hello,
            on_frame=lambda _: None,
            on_up=lambda _: self._greet(link),
            on_down=lambda _: left.set(),
        )
        self._links.add(link)
        try:
            async with background(link.run()):
                await self._over.wait()
                if link.is_up:
                    left.clear()
                    link.leave("all is known")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LAST_WORD):
                            await left.wait()
        finally:
            self._links.discard(link)
