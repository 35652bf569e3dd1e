"""One auth process: `python -m penstock.auth`."""

from penstock.auth.admin.service import AuthAdmin
from penstock.auth.config import AuthConfig
from penstock.auth.service import AdmissionService
from penstock.auth.store.recovery import edges_to_expect, recover
from penstock.auth.store.roll_up import Retention
from penstock.auth.store.sqlite import opened_store
from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.lifecycle import background, main, stop_requested
from penstock.chassis.operators.listeners import OperatorListeners
from penstock.chassis.security.process import open_security
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1.admission_pb2_grpc import add_AdmissionServiceServicer_to_server


async def run_auth(config: AuthConfig) -> None:
    clock = WallMonotonicClock().now
    retention = Retention(config.ledger_retention, config.ledger_max_rows)
    stored = opened_store(
        config.store, fsync=config.fsync, retention=retention, clock=clock, disk_watermark=config.disk_watermark
    )
    async with stored as (store, state):
        authorizer = recover(config, state, clock())
        edges = edges_to_expect(config, authorizer, clock())
        hello = hello_of("auth", config.instance_id)
        service = AdmissionService(authorizer, edges, store, hello, clock)
        admin = AuthAdmin(
            config.instance_id,
            authorizer,
            store,
            clock,
            lambda: service.figures,
            key_retention=config.ledger_retention,
        )
        async with (
            background(service.sweep(), store.watch()),
            serving(
                config.listen,
                [(add_AdmissionServiceServicer_to_server, service)],
                admin=admin,
                operators=OperatorListeners.of(config),
                drain_grace=config.drain_grace,
                advertise=config.advertise,
                security=open_security(config),
            ) as server,
        ):
            hello.address = server.address
            try:
                await stop_requested()
            finally:  # also if the store's thread failed, so that edges decide at once
                await service.drain()


if __name__ == "__main__":
    main(AuthConfig, "auth", run_auth)
