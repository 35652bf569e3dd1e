"""What every scheduler hears of a worker whose engine crashed: the one that it is attached to may be out of hearing."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc

from penstock.chassis.channels import PeerSet, channel
from penstock.chassis.lifecycle import background
from penstock.chassis.streams.link import Link
from penstock.mesh.v1 import scheduler_pb2 as pb
from penstock.mesh.v1.scheduler_pb2_grpc import SchedulerServiceStub
from penstock.v1.stream_pb2 import Hello
from penstock.worker.frames import poison_broadcast_frame
from penstock.worker.quarantine.poison_list import PoisonReport

SchedulerLink = Link[pb.AttachRequest, pb.AttachResponse]
AttachCall = grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse]

FINAL_REPORT_TIMEOUT_S = (
    2.0  # s in which a scheduler hears how it ended; who does not lets go of suspects when their time is over
)


class PoisonBroadcast:
    """Holds streams for as long as there are suspects: a scheduler that stands still would keep it to itself for two
    seconds, and one that is cut off from its worker for longer, while others place what the worker is about to try.

    `blamed` returns all that is known, whenever it is asked.
    """

    def __init__(self, schedulers: Sequence[str], hello: Hello, reports: Callable[[], Sequence[PoisonReport]]) -> None:
        self._hello = hello
        self._reports = reports
        self._sent: set[tuple[int, bool]] = set()
        self._links: set[SchedulerLink] = set()
        self._started, self._finished = asyncio.Event(), asyncio.Event()
        self._peers = PeerSet(schedulers, self._broadcast_to)

    @property
    def is_active(self) -> bool:
        return self._started.is_set()

    def send_changes(self) -> None:
        """Tell what is news: the first suspect begins it, and it ends with the last."""
        blames = self._reports()
        known = {(each.fingerprint, each.is_confirmed) for each in blames}
        if known == self._sent:
            return
        self._sent = known
        for link in self._links:
            link.send(poison_broadcast_frame(blames))
        if all(each.is_confirmed for each in blames):
            self._started.clear()
            self._finished.set()
        else:
            self._finished.clear()
            self._started.set()

    async def run(self) -> None:
        await self._peers.run()

    async def _broadcast_to(self, address: str) -> None:
        async with channel(address) as to_scheduler:
            while True:
                await self._started.wait()
                await self._keep_stream(address, lambda: SchedulerServiceStub(to_scheduler).Attach())

    def _send_all(self, link: SchedulerLink) -> None:
        link.send(poison_broadcast_frame(self._reports()))

    async def _keep_stream(self, address: str, call: Callable[[], AttachCall]) -> None:
        """Be heard there until all is known."""
        left = asyncio.Event()
        link = SchedulerLink(
            f"scheduler {address}",
            call,
            pb.AttachRequest,
            self._hello,
            on_frame=lambda _: None,
            on_up=lambda _: self._send_all(link),
            on_down=lambda _: left.set(),
        )
        self._links.add(link)
        try:
            async with background(link.run()):
                await self._finished.wait()
                if link.is_up:
                    left.clear()
                    link.close("all is known")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(FINAL_REPORT_TIMEOUT_S):
                            await left.wait()
        finally:
            self._links.discard(link)
