"""The role of this process among regions: it serves those that follow its region, and follows the home of its own."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock.auth.authorizer import Authorizer
from penstock.auth.config import AuthConfig
from penstock.auth.models.routes import RouteList
from penstock.auth.regions.catalog.writer import CatalogWriter
from penstock.auth.regions.granted import GrantedShares
from penstock.auth.regions.held import HeldShares
from penstock.auth.regions.home.granting import ShareGrants
from penstock.auth.regions.home.service import JoinCheck, RegionQuotas
from penstock.auth.regions.spending.exchanges import ShareExchanges
from penstock.auth.regions.spending.follower import RegionFollower, SendReport
from penstock.auth.regions.spending.home_stream import HomeAddress, HomeStream
from penstock.auth.regions.usage_receiver import UsageReceiver
from penstock.auth.regions.usage_reporter import REPORT_INTERVAL_S, UsageReporter
from penstock.auth.store.responses.store import ResponseStore
from penstock.auth.store.store import PutHome, Store, StoreEvent
from penstock.auth.usage.reader import UsageReader
from penstock.chassis.security.channels import Dialer
from penstock.mesh.v1.region_quota_pb2 import RegionJoin
from penstock.v1.stream_pb2 import Hello

GRANT_INTERVAL_S = 1.0


@dataclass(eq=False)
class RegionRole:
    """The streams from other regions, and those to the home region."""

    quotas: RegionQuotas
    follower: RegionFollower | None  # None: this region is its own home
    _grants: ShareGrants
    _clock: Callable[[], float]
    _has_spenders: bool

    @property
    def figures(self) -> dict[str, float]:
        if self.follower:
            return self.follower.figures
        return self.quotas.figures if self._has_spenders else {}

    async def run(self) -> None:
        """Grant shares and follow the home region, until cancelled."""
        if self.follower:
            await self.follower.run()
        while self._has_spenders:
            await asyncio.sleep(GRANT_INTERVAL_S)
            self._grants.tick(self._clock())

    def on_store_event(self, event: StoreEvent) -> None:
        self.quotas.on_store_event(event)
        if self.follower:
            self.follower.on_store_event(event)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionParts:
    """The parts of the process that the roles use."""

    authorizer: Authorizer
    routes: RouteList
    store: Store
    responses: ResponseStore
    usage: UsageReader
    hello: Hello
    clock: Callable[[], float]
    dialer: Dialer


def shares_of(config: AuthConfig) -> GrantedShares | HeldShares | None:
    """Return the shares of this region, without those that are stored; None: limits are whole here."""
    if not config.is_home:
        return HeldShares(config.region)
    return GrantedShares(config.spending_regions) if config.spending_regions else None


def region_role(config: AuthConfig, parts: RegionParts, followed: str) -> RegionRole:
    """Return the role that the settings describe. `followed`: region whose catalog the store has; empty: its own."""
    authorizer, store, clock = parts.authorizer, parts.store, parts.clock
    digest = authorizer.keys.secrets_digest(authorizer.mesh_secret)
    check = JoinCheck(
        region=config.region,
        home="" if config.is_home else config.home,
        spending=config.spending_regions,
        secrets_digest=digest,
    )
    granted = authorizer.shares if isinstance(authorizer.shares, GrantedShares) else GrantedShares(())
    grants = ShareGrants(granted, authorizer, store, clock)
    receiver = UsageReceiver(config.region, store, clock, config.hourly_retention)
    quotas = RegionQuotas(authorizer, parts.routes, parts.hello, join_check=check, grants=grants, usage=receiver)
    held = authorizer.shares if isinstance(authorizer.shares, HeldShares) else None
    follower = _follower(config, parts, held, followed, digest) if held else None
    if config.is_home and followed:  # the next home of this region must not delete its tenants unasked
        store.write(PutHome(""), lambda _: None)
    role = RegionRole(quotas, follower, grants, clock, bool(config.spending_regions))
    store.notify_events(role.on_store_event)
    return role


def _follower(config: AuthConfig, parts: RegionParts, held: HeldShares, followed: str, digest: bytes) -> RegionFollower:
    home = HomeAddress(
        door=config.home_door,
        dialer=parts.dialer,
        hello=parts.hello,
        join=RegionJoin(region=config.region, secrets_digest=digest),
    )
    writer = CatalogWriter(
        parts.authorizer,
        parts.routes,
        parts.responses,
        parts.store,
        parts.clock,
        config.home,
        followed,
        replaces=config.replace_catalog,
    )

    def new_reporter(send: SendReport) -> UsageReporter:
        return UsageReporter(config.region, parts.store, parts.usage, parts.clock, send, REPORT_INTERVAL_S)

    return RegionFollower(
        lambda listener: HomeStream(home, listener),
        parts.authorizer.served,
        parts.clock,
        exchanges=ShareExchanges(config.region, held, parts.authorizer, parts.store, parts.clock),
        writer=writer,
        new_reporter=new_reporter,
    )
