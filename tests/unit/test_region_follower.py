"""The follower of a home region ends with its streams, in any order."""

import asyncio

from penstock.auth.config import AuthConfig
from penstock.auth.identity.tenant import DEFAULT_TENANT, Tenant
from penstock.auth.models.routes import RouteList
from penstock.auth.regions.catalog.catalog import CatalogReceiver, catalog_of, whole_parts
from penstock.auth.regions.catalog.writer import CatalogWriter
from penstock.auth.regions.held import HeldShares
from penstock.auth.regions.spending.exchanges import ShareExchanges
from penstock.auth.regions.spending.follower import RegionFollower
from penstock.auth.store.recovery import recover
from penstock.auth.store.store import StoredState
from penstock.mesh.partitions import PARTITIONS

NOW = 1_800_000_000.0
TIMEOUT_S = 10.0
TENANTS = [Tenant(tenant_id=DEFAULT_TENANT)]
STATE = StoredState(
    tenants=TENANTS, balances={}, keys=[], reservations=[], lost=[], grant_uses=[], charged=[], home="eu"
)


class FakeStore:
    def write(self, change, on_persisted):
        on_persisted(None)


class FakeStream:
    """A stream to a process of the home region that owns every second partition. It ends when it is cancelled."""

    def __init__(self, listener, number):
        self.listener, self.number = listener, number
        self.instance_id = f"eu-auth{number}"
        self.epochs = dict.fromkeys(range(number % 2, PARTITIONS, 2), 1)
        self.receiver = CatalogReceiver()
        self.settled = asyncio.Event()
        self.is_up, self.end_reason = False, ""

    @property
    def catalog(self):
        return self.receiver.catalog

    async def run(self):
        self.is_up = True
        self.listener.on_up(self)
        self.listener.on_owned(self)
        for part in whole_parts(catalog_of(TENANTS, [], [], [])):
            self.receiver.on_part(part)
        self.listener.on_catalog(self)
        self.settled.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_up = False
            self.listener.on_down(self)

    def send(self, _):
        return True

    def leave(self, reason):
        self.end_reason = reason


class FakeReporter:
    lag = None

    async def run(self):
        await asyncio.Event().wait()

    def on_stream_lost(self):
        """It reports on the next stream."""


async def test_a_follower_ends_while_its_streams_end_one_after_the_other():
    """The end of the first stream makes another one the source of the catalog, which is about to end as well."""
    config = AuthConfig(region="us", home="eu", home_door="127.0.0.1:1", pepper="p" * 32, mesh_secret="m" * 32)
    held, store, opened = HeldShares("us"), FakeStore(), []
    authorizer = recover(config, STATE, NOW, None, held)

    def open_stream(listener):
        opened.append(FakeStream(listener, len(opened)))
        return opened[-1]

    follower = RegionFollower(
        open_stream,
        authorizer.served,
        lambda: NOW,
        exchanges=ShareExchanges("us", held, authorizer, store, lambda: NOW),
        writer=CatalogWriter(authorizer, RouteList([]), None, store, lambda: NOW, "eu", "eu"),
        new_reporter=lambda _: FakeReporter(),
    )
    running = asyncio.create_task(follower.run())
    async with asyncio.timeout(TIMEOUT_S):
        while not follower.is_following:  # noqa: ASYNC110  # memory has no event
            await asyncio.sleep(0.01)
    assert len(opened) == 2
    running.cancel()
    [ended] = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError)
