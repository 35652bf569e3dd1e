"""The follower: keeps streams to the home region, so that each own partition talks to its owner there."""

import asyncio
import random
from collections.abc import Callable

import structlog

from penstock.auth.partitions.owned import ServedPartitions
from penstock.auth.regions import frames
from penstock.auth.regions.catalog.writer import WRITER_PARTITION, CatalogWriter
from penstock.auth.regions.spending.exchanges import ShareExchanges
from penstock.auth.regions.spending.home_stream import HomeStream, StreamFactory
from penstock.auth.regions.spending.home_streams import HomeStreams
from penstock.auth.regions.usage_reporter import UsageReporter
from penstock.auth.store.store import StoreEvent
from penstock.mesh.v1 import region_quota_pb2 as pb
from penstock.mesh.v1.region_quota_pb2 import UsageReport

log = structlog.get_logger()

TICK_S = 1.0
SETTLE_TIMEOUT_S = 10.0  # for the hello and the partitions of the other process

SendReport = Callable[[UsageReport], bool]
ReporterFactory = Callable[[SendReport], UsageReporter]


class RegionFollower:
    """Follows the home region over one stream to each of its processes that own partitions there."""

    def __init__(
        self,
        open_stream: StreamFactory,
        served: ServedPartitions,
        clock: Callable[[], float],
        *,
        exchanges: ShareExchanges,
        writer: CatalogWriter,
        new_reporter: ReporterFactory,
    ) -> None:
        self._open_stream = open_stream
        self._exchanges = exchanges
        self._writer = writer
        self._new_reporter = new_reporter
        self._served = served
        self._clock = clock
        self._streams: HomeStreams[HomeStream] = HomeStreams(clock())
        self._problem = ""  # that was logged last
        self._reporter: UsageReporter | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None  # None: the follower does not run

    @property
    def figures(self) -> dict[str, float]:
        now = self._clock()
        return {
            "home_streams": sum(each.is_up for each in self._streams),
            "home_unfollowed": self._streams.unfollowed(now) if self._served else 0.0,
            "home_catalog_unknown": self._writer.unknown,
            "shares": self._exchanges.shares,
            "share_changes": self._exchanges.changes,
            "usage_lag": self._reporter.lag.seconds(now) if self._reporter else 0.0,
        }

    @property
    def is_following(self) -> bool:
        """Whether all own partitions talk to the home region, and its catalog is known."""
        return self._streams.source is not None and self._exchanges.is_covered

    async def run(self) -> None:
        """Follow the home region until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await self._follow(group)
            finally:
                self._group = None  # a stream that ends with the group must not begin a task in it

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        self._update_reporting()
        group.create_task(self._tick_forever(), name="follower ticks")
        while True:
            covered = self._exchanges.is_covered
            if self._streams.needs_another(has_partitions=bool(self._served), is_covered=covered):
                await self._open(group)
            # Spread: a proxy that leads streams to processes in turn leads two followers in step to the same ones.
            await asyncio.sleep(random.uniform(0.5, 1.0) * self._streams.pause)  # noqa: S311

    async def _open(self, group: asyncio.TaskGroup) -> None:
        """Open a stream and wait until its process is known."""
        stream = self._open_stream(self)
        self._streams.on_opened(stream)
        group.create_task(self._run(stream), name="home stream")
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await stream.settled.wait()
        except TimeoutError:
            stream.leave("the home has not named its partitions")
        self._streams.on_settled(stream, self._exchanges.partitions_of(stream))

    async def _run(self, stream: HomeStream) -> None:
        try:
            await stream.run()
        finally:
            self._streams.on_ended(stream)
        if not self._streams.source:
            self._log_problem(stream.end_reason or "the stream was cut")

    def _log_problem(self, problem: str) -> None:
        """Log once per problem that this region does not follow its home."""
        if problem != self._problem:
            self._problem = problem
            log.warning("home_unreachable", home=self._writer.home, because=problem)

    # Events of streams.

    def on_up(self, stream: HomeStream) -> None:
        if self._streams.is_duplicate(stream):
            stream.leave("another stream reaches the same process")
            stream.settled.set()
            return
        self._exchanges.add(stream)

    def on_owned(self, stream: HomeStream) -> None:
        self._exchanges.update()

    def on_catalog(self, stream: HomeStream) -> None:
        if self._streams.source is None:
            self._choose_source()
        elif self._streams.source is stream:
            self._writer.follow(stream.catalog)

    def on_share(self, stream: HomeStream, share: pb.Share) -> None:
        self._exchanges.on_share(stream, share)

    def on_share_rules(self, stream: HomeStream, rules: pb.ShareRules) -> None:
        self._exchanges.on_rules(rules)

    def on_usage_confirmed(self, stream: HomeStream, number: int) -> None:
        if stream is self._streams.source and self._reporter:
            self._reporter.on_confirmed(number)

    def on_usage_refused(self, stream: HomeStream, refused: pb.UsageRefused) -> None:
        if stream is self._streams.source and self._reporter:
            self._reporter.on_refused(refused.number, refused.field)

    def on_down(self, stream: HomeStream) -> None:
        self._exchanges.remove(stream)
        if self._streams.on_down(stream, self._clock()):
            if self._reporter:
                self._reporter.on_stream_lost()
            self._writer.follow(None)
            self._choose_source()
            if self._streams.source is None:
                self._log_problem(stream.end_reason)

    def on_store_event(self, event: StoreEvent) -> None:
        """Partitions were taken, given or lost, or the catalog has changed."""
        self._exchanges.update()
        self._writer.step()
        self._update_reporting()

    def _choose_source(self) -> None:
        for each in self._streams.choose_source(self._writer.accepts):
            each.leave("CATALOG_DIFFERS")
        if source := self._streams.source:
            self._problem = ""
            log.info("home_followed", home=self._writer.home, peer=source.instance_id)
            self._writer.follow(source.catalog)

    # Reports of usage.

    def _update_reporting(self) -> None:
        """Report while this process owns the partition whose owner reports."""
        if WRITER_PARTITION not in self._served:
            if self._reporting:
                self._reporting.cancel()
            self._reporting = self._reporter = None
        elif self._reporting is None and self._group:
            self._reporter = self._new_reporter(self._send_report)
            self._reporting = self._group.create_task(self._reporter.run(), name="usage reporter")

    def _send_report(self, report: UsageReport) -> bool:
        """Send a report on the stream of the catalog. Return False if there is none."""
        source = self._streams.source
        return source is not None and source.send(frames.usage(report))

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._exchanges.tick(self._clock())
            self._writer.step()
            await self._writer.delete_tenants()
