"""One auth process: `python -m penstock.auth`."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from penstock.auth.admin.service import AuthAdmin
from penstock.auth.config import AuthConfig
from penstock.auth.ext_authz.authorization import Authorization
from penstock.auth.ext_authz.http_check import serving_checks
from penstock.auth.identity.identity_keys import IdentityKeyRing
from penstock.auth.metrics import observations
from penstock.auth.models.routes import RouteList
from penstock.auth.regions.roles import RegionParts, region_role, shares_of
from penstock.auth.responses.service import ResponseService
from penstock.auth.service import AdmissionService
from penstock.auth.store.opening import opened_store
from penstock.auth.store.recovery import edges_to_expect, recover
from penstock.auth.store.responses.opening import opened_responses
from penstock.auth.store.responses.operations import ResponseOperations
from penstock.auth.store.responses.store import ThreadedResponseStore
from penstock.auth.store.roll_up import Retention
from penstock.auth.store.store import StoredState
from penstock.auth.store.threaded import ThreadedStore
from penstock.auth.usage.reader import UsageReader
from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.lifecycle import background, main, stop_requested
from penstock.chassis.operators.listeners import OperatorListeners
from penstock.chassis.security.process import open_security
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1.admission_pb2_grpc import add_AdmissionServiceServicer_to_server
from penstock.mesh.v1.region_quota_pb2_grpc import add_RegionQuotaServiceServicer_to_server
from penstock.mesh.v1.responses_pb2_grpc import add_ResponseStoreServiceServicer_to_server


async def run_auth(config: AuthConfig) -> None:
    time = WallMonotonicClock()
    clock = time.now
    async with _opened_store(config, clock) as (store, state), AsyncExitStack() as stack:
        time.shift(store.clock_offset)  # the limits of a tenant follow one clock, whichever replica owns it
        responses = await stack.enter_async_context(_opened_responses(config, clock))
        authorizer = recover(config, state, clock(), store.epochs, shares_of(config))
        tokens = None
        if config.issuers:
            from penstock.auth.oidc.refresh import accepting_tokens  # noqa: PLC0415  # PyJWT, which not each image has

            tokens = await stack.enter_async_context(accepting_tokens(config, authorizer.authenticator, clock))
        wait = tokens.wait if tokens else None
        edges = edges_to_expect(config, authorizer, clock())
        hello = hello_of("auth", config.instance_id)
        hello.partitioned = authorizer.served.is_partitioned
        proxied, routes = IdentityKeyRing(clock()), RouteList(state.routes)
        service = AdmissionService(
            authorizer, edges, store, hello, clock, identity_keys=proxied, wait_for_keys=wait, routes=routes
        )
        kept = ResponseService(responses, hello)
        authorization = Authorization(authorizer, proxied, clock, trusted_hops=config.trusted_hops, wait_for_keys=wait)
        security = open_security(config)
        usage_reader = UsageReader(config.store_location)
        stack.callback(usage_reader.close)

        parts = RegionParts(
            authorizer=authorizer,
            routes=routes,
            store=store,
            responses=responses,
            usage=usage_reader,
            hello=hello_of("auth", config.instance_id),  # without an address, which no other region can reach
            clock=clock,
            dialer=security.dialer,
        )
        role = region_role(config, parts, state.home)

        def figures() -> dict[str, float]:
            of_tokens = tokens.figures if tokens else {}
            return {**service.figures, **kept.figures, **authorization.figures, **of_tokens, **role.figures}

        admin = AuthAdmin(
            config.instance_id,
            authorizer,
            store,
            clock,
            figures,
            usage_reader=usage_reader,
            key_retention=config.ledger_retention,
            routes=routes,
            responses=responses,
            home="" if config.is_home else config.home,
        )
        admin.on_changed = role.quotas.send_changes
        async with (
            background(service.sweep(), store.watch(), responses.watch(), role.run()),
            serving(
                config.listen,
                [
                    (add_AdmissionServiceServicer_to_server, service),
                    (add_ResponseStoreServiceServicer_to_server, kept),
                    (add_RegionQuotaServiceServicer_to_server, role.quotas),
                ],
                admin=admin,
                observe=lambda: observations(figures(), authorizer.reservations, clock()),
                operators=OperatorListeners.of(config),
                drain_grace=config.drain_grace,
                advertise=config.advertise,
                security=security,
            ) as server,
            serving_checks(config.check_listen, authorization, security),
        ):
            hello.address = server.address
            try:
                await stop_requested()
            finally:  # also if the store's thread failed, so that edges decide at once
                await service.drain()
                await role.quotas.drain()
                await kept.drain()


def _opened_store(
    config: AuthConfig, clock: Callable[[], float]
) -> AbstractAsyncContextManager[tuple[ThreadedStore, StoredState]]:
    return opened_store(
        config.store,
        fsync=config.fsync,
        retention=Retention(config.ledger_retention, config.ledger_max_rows, config.hourly_retention),
        clock=clock,
        disk_watermark=config.disk_watermark,
        instance_id=config.instance_id,
        address=config.advertise or config.listen,
        reports_usage=not config.is_home,
    )


def _opened_responses(
    config: AuthConfig, clock: Callable[[], float]
) -> AbstractAsyncContextManager[ThreadedResponseStore]:
    operations = ResponseOperations(config.response_ttl, config.response_bytes_per_tenant)
    return opened_responses(config.store, operations, clock=clock, fsync=config.fsync)


if __name__ == "__main__":
    main(AuthConfig, "auth", run_auth)
