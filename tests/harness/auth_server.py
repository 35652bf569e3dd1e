"""Auth behind a real server, an edge that speaks its protocol, and a clock that the test advances."""

import asyncio
import math
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import grpc
import httpx

from operators import operators_at_socket
from penstock.auth.admin.service import AuthAdmin
from penstock.auth.authorizer import Authorizer
from penstock.auth.config import AuthConfig
from penstock.auth.ext_authz.authorization import Authorization
from penstock.auth.ext_authz.http_check import serving_checks
from penstock.auth.identity.identity_keys import IdentityKeyRing
from penstock.auth.models.routes import RouteList
from penstock.auth.oidc.refresh import KeyRefresh, accepting_tokens
from penstock.auth.regions.roles import RegionParts, RegionRole, region_role, shares_of
from penstock.auth.responses.service import ResponseService
from penstock.auth.service import AdmissionService
from penstock.auth.store.opening import opened_store
from penstock.auth.store.recovery import edges_to_expect, recover
from penstock.auth.store.responses.opening import opened_responses
from penstock.auth.store.responses.operations import ResponseOperations
from penstock.auth.store.roll_up import Retention
from penstock.auth.store.sqlite import sql
from penstock.auth.usage.reader import UsageReader
from penstock.chassis.channels import channel
from penstock.chassis.errors import error_from_failure
from penstock.chassis.security.channels import PLAINTEXT
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.partitions import partition_of
from penstock.mesh.v1.admission_pb2 import (
    AdmitRequest,
    Credential,
    Identify,
    IdentityKeys,
    NotOwner,
    OwnedPartitions,
    Reserve,
    Routes,
    Settle,
)
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceStub, add_AdmissionServiceServicer_to_server
from penstock.mesh.v1.region_quota_pb2_grpc import add_RegionQuotaServiceServicer_to_server
from penstock.mesh.v1.responses_pb2_grpc import (
    ResponseStoreServiceStub,
    add_ResponseStoreServiceServicer_to_server,
)
from penstock.v1 import admin_pb2 as pb
from penstock.v1.admin_pb2_grpc import AdminStub
from penstock.v1.stream_pb2 import Heartbeat, Hello
from proxy_checks import check

DEV_KEY = "pk_dev_" + "0123456789abcdef" * 2
START_UNIX_S = 1_800_000_000.0
SECRETS = {"pepper": "p" * 32, "mesh_secret": "m" * 32}


@dataclass
class FakeClock:
    now: float = START_UNIX_S

    def __call__(self) -> float:
        return self.now


@dataclass
class AuthProcess:
    """One auth process with its address and stubs."""

    service: AdmissionService
    address: str
    clock: FakeClock
    admin: AdminStub
    stub: AdmissionServiceStub
    check_address: str = ""
    authorization: Authorization | None = None
    authorizer: Authorizer | None = None
    tokens: KeyRefresh | None = None
    admin_address: str = ""
    responses: ResponseStoreServiceStub | None = None
    response_service: ResponseService | None = None
    role: RegionRole | None = None

    @property
    def figures(self) -> dict[str, float]:
        return {**self.service.figures, **(self.role.figures if self.role else {})}

    async def check(self, bearer: str = "", source: str = "203.0.113.9", **headers: str) -> httpx.Response:
        """Ask about a request as a proxy does."""
        return await check(self.check_address, bearer, source, **headers)


@asynccontextmanager
async def auth_process(path=":memory:", *, clock=None, **settings):
    clock = clock or FakeClock()
    config = AuthConfig(listen="127.0.0.1:0", store=str(path), dev_key=DEV_KEY, **(SECRETS | settings))
    retention = Retention(config.ledger_retention, config.ledger_max_rows, config.hourly_retention)
    opened = opened_store(config.store, retention=retention, clock=clock, reports_usage=not config.is_home)
    async with opened as (store, state), AsyncExitStack() as stack:
        operations = ResponseOperations(config.response_ttl, config.response_bytes_per_tenant)
        responses = await stack.enter_async_context(opened_responses(config.store, operations, clock=clock))
        authorizer = recover(config, state, clock(), store.epochs, shares_of(config))
        hello = Hello(protocol=1, instance_id=config.instance_id or "auth-1", tier="auth")
        hello.partitioned = authorizer.served.is_partitioned
        edges = edges_to_expect(config, authorizer, clock(), stall_threshold=math.inf)
        identity_keys = IdentityKeyRing(clock())
        tokens = None
        if config.issuers:
            tokens = await stack.enter_async_context(accepting_tokens(config, authorizer.authenticator, clock))
        routes = RouteList(state.routes)
        wait = {"wait_for_keys": tokens.wait if tokens else None}
        served = AdmissionService(
            authorizer, edges, store, hello, clock, identity_keys=identity_keys, routes=routes, **wait
        )
        authorization = Authorization(authorizer, identity_keys, clock, trusted_hops=config.trusted_hops, **wait)
        usage_reader = UsageReader(config.store_location)
        stack.callback(usage_reader.close)
        admin = AuthAdmin(
            *("auth-1", authorizer, store, clock, lambda: served.figures),
            usage_reader=usage_reader,
            key_retention=config.ledger_retention,
            routes=routes,
            responses=responses,
            home="" if config.is_home else config.home,
        )
        role = region_role(
            config,
            RegionParts(
                authorizer=authorizer,
                routes=routes,
                store=store,
                responses=responses,
                usage=usage_reader,
                hello=hello_of("auth", hello.instance_id),
                clock=clock,
                dialer=PLAINTEXT,
            ),
            state.home,
        )
        admin.on_changed = role.quotas.send_changes
        running = [asyncio.create_task(each) for each in (served.sweep(), role.run())]
        kept = ResponseService(responses, hello)
        registrations = [
            (add_AdmissionServiceServicer_to_server, served),
            (add_ResponseStoreServiceServicer_to_server, kept),
            (add_RegionQuotaServiceServicer_to_server, role.quotas),
        ]
        with operators_at_socket(audit_log=config.audit_log_path) as operators:
            async with (
                serving(config.listen, registrations, admin=admin, operators=operators) as server,
                channel(server.address) as to_auth,
                channel(server.admin_address) as to_admin,
                serving_checks("127.0.0.1:0", authorization) as checks,
            ):
                stubs = AdminStub(to_admin), AdmissionServiceStub(to_auth)
                parts = (checks, authorization, authorizer, tokens)
                more = {"admin_address": server.admin_address, "responses": ResponseStoreServiceStub(to_auth)}
                more |= {"response_service": kept, "role": role}
                yield AuthProcess(served, server.address, clock, *stubs, *parts, **more)
                await asyncio.gather(served.drain(), kept.drain())
                await role.quotas.drain()
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


HEARTBEAT_S = 0.3


@dataclass
class AuthEdge:
    """One stream of an edge. Answers arrive in the order in which auth sends them."""

    call: object
    instance_id: str = "edge-1"
    identity_keys: IdentityKeys | None = None  # the latest frame
    owned_partitions: OwnedPartitions | None = None  # the latest frame
    routes: list[Routes] = field(default_factory=list)  # all frames
    residency: list[bytes] = field(default_factory=list)  # all digests
    credential: Credential = field(default_factory=lambda: Credential(bearer=DEV_KEY, loopback=True))

    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def send(self, **frame):
        async with self.writing:
            await self.call.write(AdmitRequest(**frame))

    async def beat(self):
        """Send heartbeats. One that auth cannot receive any more fails the call with what is not read yet."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self.send(heartbeat=Heartbeat())

    async def receive(self):
        while True:
            frame = await self.call.read()
            assert frame is not grpc.aio.EOF
            kind = frame.WhichOneof("frame")
            if kind == "identity_keys":
                self.identity_keys = frame.identity_keys
            elif kind == "owned_partitions":
                self.owned_partitions = frame.owned_partitions
            elif kind == "routes":
                self.routes.append(frame.routes)
            elif kind == "residency":
                self.residency.append(frame.residency.digest)
            elif kind != "heartbeat":
                return getattr(frame, kind)

    async def reserve(self, request_id="request-1", prompt=10, output=20, model="m", **more):
        fields = {"credential": self.credential, **more}
        await self.send(
            reserve=Reserve(
                request_id=request_id, prompt_tokens=prompt, max_output_tokens=output, model=model, **fields
            )
        )
        return await self.receive()

    async def reserve_at_owner(self, **fields):
        """Reserve once this replica owns the partition of the tenant."""
        async with asyncio.timeout(20):
            while isinstance(answer := await self.reserve(**fields), NotOwner):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.01)
        return answer

    async def settle(self, reservation_id, prompt=10, output=7, outcome="stop", tenant_id="default", **more):
        fields = {"prompt_tokens": prompt, "output_tokens": output, "outcome": outcome, **more}
        partition = partition_of(tenant_id)
        await self.send(settle=Settle(reservation_id=reservation_id, partition=partition, **fields))
        return await self.receive()

    async def identify(self, credential, request_id="identify-1", *, delegates=False):
        await self.send(identify=Identify(request_id=request_id, credential=credential, delegates=delegates))
        return await self.receive()

    async def delegate(self, credential) -> Credential:
        """Return the delegation of a caller as a credential."""
        return Credential(delegation=(await self.identify(credential, delegates=True)).delegation)


@asynccontextmanager
async def edge(found: AuthProcess, instance_id="edge-1", *, beats=False):
    """A stream to auth. `beats`: with heartbeats, so that it may stay silent for more than 1.5 s."""
    call = found.stub.Admit()
    edge = AuthEdge(call, instance_id)
    await edge.send(hello=Hello(protocol=1, instance_id=instance_id, tier="edge"))
    assert (await edge.receive()).tier == "auth"
    beating = [asyncio.create_task(edge.beat())] if beats else []
    try:
        yield edge
    finally:
        for each in beating:
            each.cancel()
        await asyncio.gather(*beating, return_exceptions=True)
        call.cancel()


async def wait_for_figure(found: AuthProcess, name: str, value: float) -> None:
    """Wait until a figure has this value."""
    async with asyncio.timeout(10):
        while found.figures[name] != value:  # noqa: ASYNC110  # figures have no event
            await asyncio.sleep(0)


async def tenant_use(found: AuthProcess, tenant_id="default") -> pb.TenantUse:
    listed = await found.admin.ListTenants(pb.ListTenantsRequest())
    return next(each for each in listed.uses if each.tenant_id == tenant_id)


def rejection_of(answer):
    return error_from_failure(answer.failure)


async def tenant_with_key(found: AuthProcess, **limits) -> Credential:
    await found.admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="acme", **limits)))
    return Credential(bearer=(await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="acme"))).secret)


@contextmanager
def full_disk(monkeypatch):
    """Let every write to the store fail in the block."""
    with monkeypatch.context() as patch:
        patch.setattr(sql, "apply", raise_disk_full)
        patch.setattr(sql, "probe", raise_disk_full)
        yield


def raise_disk_full(*_, **__):
    raise sql.sqlite3.OperationalError("database or disk is full")
