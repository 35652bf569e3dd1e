"""The worker's session with the one scheduler that places runs on it.

The worker attaches to one scheduler at a time. After a stream is rejected, cut or ended, the next attempt goes to the
next address. The worker is attached only while its engine accepts work, or while it has poison reports after an engine
crash: then without capacity, and it sends nothing else.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc

from penstock.chassis.channels import AddressWatch
from penstock.chassis.lifecycle import background
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.chassis.streams.link import Link
from penstock.mesh.v1 import scheduler_pb2 as pb
from penstock.mesh.v1.scheduler_pb2_grpc import SchedulerServiceStub
from penstock.v1.stream_pb2 import Hello
from penstock.worker.frames import (
    poison_update_frame,
    prefix_cache_frame,
    progress_message,
    released_frame,
    report_frame,
)
from penstock.worker.quarantine.poison_list import PoisonReport
from penstock.worker.runs.effects import LeasesReleased
from penstock.worker.scheduler_session.load_report import LoadReport
from penstock.worker.scheduler_session.prefix_cache_delta import PrefixCacheDelta
from penstock.worker.scheduler_session.progress import ProgressReport

STARTED_DELAY_S = 0.02  # s; the end of a short run may follow within this time, in the same message
DISCONNECT_TIMEOUT_S = 1.0  # for the scheduler to close the stream after our `end`


class SchedulerClient:
    """Keeps the session while `run` runs, between `attach` and `detach`. Other methods are plain calls on the loop."""

    def __init__(
        self,
        schedulers: Sequence[str],
        hello: Hello,
        *,
        profile: Callable[[], pb.Profile],
        on_frame: Callable[[pb.AttachResponse], None],
        dialer: Dialer = PLAINTEXT,
    ) -> None:
        """`profile` is called at each attachment; it has the running leases, or only poison reports."""
        self._address_watch = AddressWatch(schedulers)
        self._address_ranks = {address: float(place) for place, address in enumerate(schedulers)}
        self._profile = profile
        self._dialer = dialer
        self._addresses: list[str] = []
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._next_address = 0
        self._addresses_known, self._attach_requested, self._detach_requested, self._disconnected = (
            asyncio.Event() for _ in range(4)
        )
        self._load: LoadReport | None = None
        self._last_reported: LoadReport | None = None
        self._detach_reason = ""
        self._is_accepting = False  # whether the last profile offered capacity
        self._is_detaching = False
        self._link = Link[pb.AttachRequest, pb.AttachResponse](
            "scheduler",
            self._connect_next,
            pb.AttachRequest,
            hello,
            on_frame=on_frame,
            on_up=self._on_link_up,
            on_down=self._on_link_down,
            check_hello=dialer.hello_check("scheduler"),
        )

    @property
    def is_connected(self) -> bool:
        """Whether the worker is attached to a scheduler with capacity."""
        return self._is_accepting and self._link.is_up

    def attach(self) -> None:
        """Attach, or send the current `profile` if attached already."""
        self._detach_requested.clear()
        self._attach_requested.set()
        if self._link.is_up and not self._is_detaching:
            self._send_profile()

    def detach(self, reason: str) -> None:
        """End the session; leases that the scheduler announced before still arrive.

        The next attempt goes to the same scheduler, because it has this worker's poison reports.
        """
        self._next_address -= self._link.is_up and not self._is_detaching
        self._is_detaching = self._link.is_up
        self._detach_reason = reason
        self._load = None
        self._attach_requested.clear()
        self._detach_requested.set()

    def send_started(self, lease_id: str) -> None:
        frame = pb.AttachRequest(started=pb.Started(lease_id=lease_id))
        if self._is_accepting:
            self._link.send(frame, max_delay_s=STARTED_DELAY_S)

    def send_released(self, released: LeasesReleased, steps: int) -> None:
        self._send(released_frame(released, steps))

    def send_poison_reports(self, reports: Sequence[PoisonReport]) -> None:
        """Send the reports at once; the profile of the next attachment has them, too."""
        self._send(poison_update_frame(reports))

    def send_progress(self, report: ProgressReport, steps: int) -> None:
        """`steps`: engine steps, as in the load report."""
        self._send(pb.AttachRequest(progress=progress_message(report, steps)))

    def send_prefix_cache_delta(self, delta: PrefixCacheDelta) -> None:
        self._send(prefix_cache_frame(delta))

    def report_load(self, load: LoadReport) -> None:
        """Send the load if it differs from the last report; called at most once per engine step."""
        self._load = load
        if load.differs_from(self._last_reported) and self._send(report_frame(load)):
            self._last_reported = load

    def _send(self, frame: pb.AttachRequest) -> bool:
        return self._is_accepting and self._link.send(frame)

    async def run(self) -> None:
        async with background(self._follow_addresses()):
            await self._addresses_known.wait()
            try:
                while True:
                    await self._attach_requested.wait()
                    async with background(self._link.run()):
                        await self._detach_requested.wait()
                        await self._disconnect()
            finally:
                for each in self._channels.values():
                    await each.close()

    async def _disconnect(self) -> None:
        if not self._link.is_up:
            return
        self._link.end(self._detach_reason)
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCONNECT_TIMEOUT_S):
                await self._disconnected.wait()

    async def _follow_addresses(self) -> None:
        async for present in self._address_watch:
            self._addresses = sorted(present, key=self._rank_of) or self._addresses
            if self._addresses:
                self._addresses_known.set()

    def _rank_of(self, address: str) -> float:
        """Rank by position in the list; addresses of a DNS name rank at random, so that a fleet spreads over them."""
        return self._address_ranks.setdefault(address, len(self._address_ranks) + random.random())  # noqa: S311  # not a secret

    def _connect_next(self) -> grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse]:
        address = self._addresses[self._next_address % len(self._addresses)]
        self._next_address += 1
        if address not in self._channels:
            self._channels[address] = self._dialer.channel(address, "scheduler")
        return SchedulerServiceStub(self._channels[address]).Attach()

    def _on_link_down(self, _: str) -> None:
        self._is_accepting = self._is_detaching = False
        self._disconnected.set()

    def _on_link_up(self, _: Hello) -> None:
        if self._attach_requested.is_set():  # otherwise detached while connecting: `run` is about to end the link
            self._disconnected.clear()
            self._send_profile()

    def _send_profile(self) -> None:
        self._last_reported = None
        profile = self._profile()
        self._link.send(pb.AttachRequest(profile=profile))
        self._is_accepting = bool(profile.model)
        if self._load:
            self.report_load(self._load)
