"""Broadcast of poison reports to every scheduler, as the one that the worker is attached to may be unreachable."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc

from penstock.chassis.channels import PeerSet
from penstock.chassis.lifecycle import background
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.chassis.streams.link import Link
from penstock.mesh.v1 import scheduler_pb2 as pb
from penstock.mesh.v1.scheduler_pb2_grpc import SchedulerServiceStub
from penstock.v1.stream_pb2 import Hello
from penstock.worker.frames import poison_update_frame
from penstock.worker.quarantine.poison_list import PoisonReport

SchedulerLink = Link[pb.AttachRequest, pb.AttachResponse]
AttachCall = grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse]

# For a scheduler to receive the final reports; without them it releases suspects after their time to live.
FINAL_REPORT_TIMEOUT_S = 2.0


class PoisonBroadcast:
    """Keeps a stream to every scheduler while there are suspects.

    The attached scheduler alone is not enough: if it is suspended, it delays the reports by two seconds, and if it is
    cut off from the worker, by more, while other schedulers place the requests that the worker is about to isolate.
    """

    def __init__(
        self,
        schedulers: Sequence[str],
        hello: Hello,
        reports: Callable[[], Sequence[PoisonReport]],
        *,
        dialer: Dialer = PLAINTEXT,
    ) -> None:
        """`reports` returns all current reports."""
        self._hello = hello
        self._reports = reports
        self._dialer = dialer
        self._sent: set[tuple[int, bool]] = set()
        self._links: dict[SchedulerLink, None] = {}  # in order of connection
        self._started, self._finished = asyncio.Event(), asyncio.Event()
        self._peers = PeerSet(schedulers, self._broadcast_to)

    @property
    def is_active(self) -> bool:
        return self._started.is_set()

    def send_changes(self) -> None:
        """Send the reports if they changed. The first suspect starts the broadcast, and it ends with the last."""
        reports = self._reports()
        known = {(each.fingerprint, each.is_confirmed) for each in reports}
        if known == self._sent:
            return
        self._sent = known
        for link in self._links:
            link.send(poison_update_frame(reports))
        if all(each.is_confirmed for each in reports):
            self._started.clear()
            self._finished.set()
        else:
            self._finished.clear()
            self._started.set()

    async def run(self) -> None:
        await self._peers.run()

    async def _broadcast_to(self, address: str) -> None:
        async with self._dialer.channel(address, "scheduler") as to_scheduler:
            while True:
                await self._started.wait()
                await self._keep_stream(address, lambda: SchedulerServiceStub(to_scheduler).Attach())

    def _send_all(self, link: SchedulerLink) -> None:
        link.send(poison_update_frame(self._reports()))

    async def _keep_stream(self, address: str, call: Callable[[], AttachCall]) -> None:
        """Keep a link to one scheduler until no suspect is left."""
        is_down = asyncio.Event()
        link = SchedulerLink(
            f"scheduler {address}",
            call,
            pb.AttachRequest,
            self._hello,
            on_frame=lambda _: None,
            on_up=lambda _: self._send_all(link),
            on_down=lambda _: is_down.set(),
            check_hello=self._dialer.hello_check("scheduler"),
        )
        self._links[link] = None
        try:
            async with background(link.run()):
                await self._finished.wait()
                if link.is_up:
                    is_down.clear()
                    link.close("no suspect is left")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(FINAL_REPORT_TIMEOUT_S):
                            await is_down.wait()
        finally:
            del self._links[link]
