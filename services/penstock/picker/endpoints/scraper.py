"""Scraping: reads the list of endpoints and the metrics of each at intervals. The fleet decides what they mean."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from penstock.picker.endpoints.discovery import EndpointDiscovery
from penstock.picker.endpoints.fleet import EndpointFleet
from penstock.picker.endpoints.http_get import ResponseInvalid, get
from penstock.picker.endpoints.load import LoadUnreadable, parse_load

log = structlog.get_logger()

DISCOVERY_INTERVAL_S = 2.0


class EndpointScraper:
    """Applies scrapes to the fleet. `on_changed` is called after each, and at each interval."""

    def __init__(
        self,
        fleet: EndpointFleet,
        discovery: EndpointDiscovery,
        clock: Callable[[], float],
        on_changed: Callable[[], None],
        *,
        path: str,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        self._fleet = fleet
        self._discovery = discovery
        self._clock = clock
        self._on_changed = on_changed
        self._path = path
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._running: dict[str, asyncio.Task[None]] = {}
        self.failures = 0  # scrapes without a load, since the start

    async def discover(self) -> None:
        """Apply the list as it is now. Raises EndpointInvalid or OSError."""
        self._fleet.set_addresses(await self._discovery.poll(), self._clock())

    async def scrape_all(self) -> None:
        """Scrape each endpoint once."""
        await asyncio.gather(*(self._scrape(each.address) for each in self._fleet))

    async def run_discovery(self) -> None:
        """Follow the list until cancelled. A list that cannot be read leaves the endpoints as they are."""
        while True:
            await asyncio.sleep(DISCOVERY_INTERVAL_S)
            try:
                await self.discover()
            except (OSError, ValueError) as error:
                log.warning("endpoints_unreadable", error=str(error))
            self._on_changed()

    async def run(self) -> None:
        """Scrape at the interval until cancelled. An endpoint that has not answered yet is not asked again."""
        async with asyncio.TaskGroup() as group:
            while True:
                for endpoint in self._fleet:
                    address = endpoint.address
                    if address not in self._running:
                        task = self._running[address] = group.create_task(self._scrape(address))
                        task.add_done_callback(partial(self._on_scraped, address))
                await asyncio.sleep(self._interval_s)
                self._fleet.expire(self._clock())
                self._on_changed()

    def _on_scraped(self, address: str, _: "asyncio.Task[None]") -> None:
        del self._running[address]

    async def _scrape(self, address: str) -> None:
        """Scrape one endpoint. Its failure is a state of the endpoint."""
        endpoint = self._fleet.endpoints.get(address)
        held = endpoint.held if endpoint else 0
        try:
            async with asyncio.timeout(self._timeout_s):
                load = parse_load((await get(address, self._path)).decode("utf-8", "replace"))
        except (LoadUnreadable, ResponseInvalid) as error:
            self._fail(address, error)
            self._fleet.on_answer(address, self._clock())
        except (OSError, EOFError) as error:  # TimeoutError is an OSError
            self._fail(address, error)
            if isinstance(error, ConnectionRefusedError):
                self._fleet.on_refused(address, self._clock())
        else:
            self._fleet.on_load(address, load, held, self._clock())
        self._on_changed()

    def _fail(self, address: str, error: Exception) -> None:
        self.failures += 1
        log.debug("scrape_failed", endpoint=address, because=str(error) or type(error).__name__)
