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
from penstock.auth.regions.usage_reporter import UsageReporter
from penstock.auth.store.store import StoreEvent
from penstock.mesh.v1 import region_quota_pb2 as pb
from penstock.mesh.v1.region_quota_pb2 import UsageReport

log = structlog.get_logger()

MAX_STREAMS = 8
PAUSE_S = (0.25, 2.0)  # first and longest time between two new streams
REFUSED_PAUSE_S = 5.0  # after a stream whose catalog this region must not take over
TICK_S = 1.0
SETTLE_TIMEOUT_S = 10.0  # for the hello and the partitions of the other process

SendReport = Callable[[UsageReport], None]
ReporterFactory = Callable[[SendReport], UsageReporter]


class RegionFollower:
    """Follows the home region over one stream to each of its processes that own partitions there.

    The catalog is that of one stream, because two processes may know its latest changes at different times.
    """

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
        self._streams: dict[HomeStream, None] = {}  # in the order in which they were opened
        self._source: HomeStream | None = None  # of the catalog
        self._unfollowed_since: float | None = clock()  # s; None while there is a source
        self._is_refused = False  # the latest catalog must not be taken over
        self._problem = ""  # that was logged last
        self._reporter: UsageReporter | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None  # None: the follower does not run

    @property
    def figures(self) -> dict[str, float]:
        since = self._unfollowed_since
        unfollowed = 0.0 if since is None or not self._served else self._clock() - since
        return {
            "home_streams": sum(each.is_up for each in self._streams),
            "home_unfollowed": max(0.0, unfollowed),
            "home_catalog_unknown": self._writer.unknown,
            "shares": self._exchanges.shares,
            "share_changes": self._exchanges.changes,
        }

    @property
    def is_following(self) -> bool:
        """Whether all own partitions talk to the home region, and its catalog is known."""
        return self._source is not None and self._exchanges.is_covered

    async def run(self) -> None:
        """Follow the home region until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await self._follow(group)
            finally:
                self._group = None  # a stream that ends with the group must not begin a task in it

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self._tick_forever(), name="follower ticks")
        pause = PAUSE_S[0]
        while True:
            if not self._needs_stream:
                pause = PAUSE_S[0]
            else:
                is_useful = await self._open(group)
                pause = PAUSE_S[0] if is_useful else min(2 * pause, PAUSE_S[1])
            # Spread: a proxy that leads streams to processes in turn leads two followers in step to the same ones.
            spread = random.uniform(0.5, 1.0)  # noqa: S311
            await asyncio.sleep(spread * (REFUSED_PAUSE_S if self._is_refused else pause))

    @property
    def _needs_stream(self) -> bool:
        if not self._served or len(self._streams) >= MAX_STREAMS:
            return False
        return not self.is_following

    async def _open(self, group: asyncio.TaskGroup) -> bool:
        """Open a stream and wait until its process is known. Return whether it is of use."""
        self._is_refused = False
        stream = self._open_stream(self)
        self._streams[stream] = None
        group.create_task(self._run(stream), name="home stream")
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await stream.settled.wait()
        except TimeoutError:
            stream.leave("the home has not named its partitions")
        return stream.is_up and (self._exchanges.partitions_of(stream) > 0 or len(self._streams) == 1)

    async def _run(self, stream: HomeStream) -> None:
        try:
            await stream.run()
        finally:
            del self._streams[stream]
        if not self._source:
            self._log_problem(stream.end_reason or "the stream was cut")

    def _log_problem(self, problem: str) -> None:
        """Log once per problem that this region does not follow its home."""
        if problem != self._problem:
            self._problem = problem
            log.warning("home_unreachable", home=self._writer.home, because=problem)

    # Events of streams.

    def on_up(self, stream: HomeStream) -> None:
        if any(each.is_up and each.instance_id == stream.instance_id for each in self._streams if each is not stream):
            stream.leave("another stream reaches the same process")
            stream.settled.set()
            return
        self._exchanges.add(stream)

    def on_owned(self, stream: HomeStream) -> None:
        self._exchanges.update()

    def on_catalog(self, stream: HomeStream) -> None:
        if self._source is None:
            self._choose_source()
        elif self._source is stream:
            self._writer.follow(stream.receiver.catalog)

    def on_share(self, stream: HomeStream, share: pb.Share) -> None:
        self._exchanges.on_share(stream, share)

    def on_usage_confirmed(self, stream: HomeStream, number: int) -> None:
        if stream is self._source and self._reporter:
            self._reporter.on_confirmed(number)

    def on_down(self, stream: HomeStream) -> None:
        self._exchanges.remove(stream)
        if stream is self._source:
            self._stop_reporting()
            self._source = None
            self._writer.follow(None)
            self._choose_source()
            if self._source is None:
                self._unfollowed_since = self._clock()
                self._log_problem(stream.end_reason)

    def on_store_event(self, event: StoreEvent) -> None:
        """Partitions were taken, given or lost, or the catalog has changed."""
        self._exchanges.update()
        self._writer.step()
        self._update_reporting()

    # The source of the catalog.

    def _choose_source(self) -> None:
        for stream in self._streams:
            catalog = stream.receiver.catalog
            if not stream.is_up or catalog is None:
                continue
            if not self._writer.accepts(catalog):
                self._is_refused = True
                stream.leave("CATALOG_DIFFERS")
                continue
            self._source, self._unfollowed_since, self._problem = stream, None, ""
            log.info("home_followed", home=self._writer.home, peer=stream.instance_id)
            self._writer.follow(catalog)
            self._update_reporting()
            return

    # Reports of usage.

    def _update_reporting(self) -> None:
        """Report on the stream of the catalog while this process owns the partition whose owner reports."""
        if self._source is None or WRITER_PARTITION not in self._served:
            self._stop_reporting()
        elif self._reporting is None and self._group:
            source = self._source
            self._reporter = self._new_reporter(lambda report: _send(source, report))
            self._reporting = self._group.create_task(self._reporter.run(), name="usage reporter")

    def _stop_reporting(self) -> None:
        if self._reporting:
            self._reporting.cancel()
        self._reporting = self._reporter = None

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._exchanges.tick(self._clock())
            self._writer.step()
            await self._writer.delete_tenants()


def _send(stream: HomeStream, report: UsageReport) -> None:
    stream.send(frames.usage(report))
