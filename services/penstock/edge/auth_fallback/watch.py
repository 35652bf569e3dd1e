"""Outage watch: the clock and the timer of the outages of auth, and one log line for each."""

import asyncio
from collections.abc import Callable
from contextvars import Context

import structlog

from penstock.chassis.clocks import StallFreeClock
from penstock.edge.auth_fallback.partition_outages import OutageStage, PartitionGroup, PartitionOutages

log = structlog.get_logger()

MAX_COUNTED_STEP_S = 0.25  # longest step of the clock; more than that is a stall of the edge


class OutageWatch:
    """Asks and informs `PartitionOutages` with the time in which this process ran.

    `on_unreachable` is called with the groups of partitions for which the edge decides from now on, or for which it no
    longer expects another owner.
    """

    def __init__(
        self,
        outage_after: float,
        now: Callable[[], float],
        *,
        on_unreachable: Callable[[list[PartitionGroup]], None],
    ) -> None:
        self._now = now
        self._on_unreachable = on_unreachable
        self._outages = PartitionOutages(outage_after=outage_after)
        self._step = min(MAX_COUNTED_STEP_S, outage_after / 4) or MAX_COUNTED_STEP_S
        self._clock = StallFreeClock(self._step)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_all_unreachable(self) -> bool:
        """Whether no replica of auth is connected and responds."""
        return self._outages.is_all_unreachable(self._running_time())

    @property
    def is_any_unreachable(self) -> bool:
        """Whether the edge decides instead of auth for at least one partition."""
        return self._outages.is_any_unreachable(self._running_time())

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def group(self, partition: int) -> PartitionGroup:
        return self._outages.group(partition)

    def is_unreachable(self, partition: int) -> bool:
        return self._outages.is_unreachable(partition, self._running_time())

    def is_store_unavailable(self, partition: int) -> bool:
        """Whether the owner responds and cannot record anything. Frames for it are sent when it can."""
        return self._outages.is_store_unavailable(partition)

    def is_responsive(self, address: str) -> bool:
        return self._outages.is_responsive(address, self._running_time())

    def is_takeover_expected(self, partition: int) -> bool:
        return self._outages.is_takeover_expected(partition, self._running_time())

    def outage_duration(self, partition: int) -> float:
        return self._outages.outage_duration(partition, self._running_time())

    # Events of streams, owners and frames.

    def on_connected(self, address: str) -> None:
        self._outages.on_connected(address, self._running_time())

    def on_disconnected(self, address: str, *, on_purpose: bool = False) -> None:
        self._outages.on_disconnected(address, self._running_time(), on_purpose=on_purpose)

    def on_owners_changed(self, owners: dict[int, str]) -> None:
        """Assign partitions to their new owners; empty: none."""
        now = self._running_time()
        for address in sorted(set(owners.values()) - {""}):
            self._outages.assign([each for each, owner in owners.items() if owner == address], address, now)
        self._outages.unassign([each for each, owner in owners.items() if not owner], now)

    def on_store_state(self, address: str, *, is_unavailable: bool) -> None:
        self._outages.on_store_state(address, self._running_time(), is_unavailable=is_unavailable)

    def on_request_sent(self, address: str, request_id: str) -> None:
        self._outages.on_request_sent(address, request_id, self._running_time())
        self._schedule_check()

    def on_request_moved(self, address: str, request_id: str) -> None:
        self._outages.on_request_moved(address, request_id)

    def on_response(self, address: str, request_id: str = "") -> None:
        self._outages.on_response(address, self._running_time(), request_id)
        self._schedule_check()

    def check(self) -> None:
        """Report new outages, and schedule the next check."""
        self.close()  # it may be due earlier now
        now = self._running_time()
        if risen := self._outages.check(now):
            self._log(risen, now)
            self._on_unreachable(risen)
        self._schedule_check()

    def _log(self, risen: list[PartitionGroup], now: float) -> None:
        for group in risen:
            log.warning(
                "auth_unreachable",
                replica=group.address,
                partitions=group.partitions,
                silent_s=round(max(0.0, now - group.detector.outage_since), 3),
                takeover_expected=group.stage is OutageStage.TAKEOVER_EXPECTED,
            )

    def _running_time(self) -> float:
        return self._clock.at(self._now())

    def _schedule_check(self) -> None:
        if self._timer is None and self._outages.is_timing:
            often, now = self._step / 2, self._running_time()
            delay = min(often, self._outages.next_change_at(now) - now)
            # An empty context, so that log lines of the check do not name the latest request.
            self._timer = asyncio.get_running_loop().call_later(delay, self.check, context=Context())
