"""The role of this process among regions: it serves those that follow its region, and follows the home of its own."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from collections.abc import AsyncIterator

from penstock.auth.authorizer import Authorizer
from penstock.auth.config import AuthConfig
from penstock.auth.models.routes import RouteList
from penstock.auth.regions.catalog.writer import CatalogWriter
from penstock.auth.regions.exchanges import ShareExchanges
from penstock.auth.regions.follower import RegionFollower, SendReport
from penstock.auth.regions.granted import GrantedShares
from penstock.auth.regions.granting import ShareGrants
from penstock.auth.regions.held import HeldShares
from penstock.auth.regions.home_stream import HomeAddress, HomeStream, StreamListener
from penstock.auth.regions.service import JoinCheck, RegionQuotas
from penstock.auth.regions.usage_receiver import UsageReceiver
from penstock.auth.regions.usage_reporter import UsageReporter
from penstock.auth.store.responses.store import ResponseStore
from penstock.auth.store.store import PutHome, Store
from penstock.auth.usage.reader import UsageReader
from penstock.chassis.security.channels import Dialer
from penstock.mesh.v1.region_quota_pb2 import RegionJoin
from penstock.v1.stream_pb2 import Hello
