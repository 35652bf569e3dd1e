"""One process of the batch tier: `python -m penstock.batch`."""

from penstock.batch.census import CensusTaker
from penstock.batch.config import BatchConfig
from penstock.batch.metrics import observations
from penstock.batch.runner.edges import EdgeLinks
from penstock.batch.runner.runner import BatchRunner
from penstock.batch.service import BatchService
from penstock.batch.store.job_worker import JobWorker
from penstock.batch.store.opening import opened_store
from penstock.chassis import lifecycle
from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.lifecycle import background, stop_requested
from penstock.chassis.operators.listeners import OperatorListeners
from penstock.chassis.security.process import open_security
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1.batch_pb2_grpc import add_BatchServiceServicer_to_server


async def run_batch(config: BatchConfig) -> None:
    hello = hello_of("batch", config.instance_id)
    security = open_security(config)
    with opened_store(config, WallMonotonicClock().now) as store:
        edges = EdgeLinks(config.edges, hello, dialer=security.dialer)
        runner, jobs = BatchRunner(config.instance_id, store, edges), JobWorker(store)
        census = CensusTaker(store)

        def figures() -> dict[str, float]:
            is_available = census.is_available and runner.can_commit
            return {**runner.figures, **census.figures, "store_available": is_available}

        async with serving(
            config.listen,
            [(add_BatchServiceServicer_to_server, BatchService(store))],
            admin=AdminService("batch", config.instance_id, figures, lambda: census.latest.tables),
            observe=lambda: observations(figures()),
            operators=OperatorListeners.of(config),
            drain_grace=config.drain_grace,
            advertise=config.advertise,
            security=security,
        ) as server:
            hello.address = server.address
            async with background(edges.run(), runner.run(), jobs.run(), jobs.run_upkeep(), census.run()):
                await stop_requested()
                await runner.drain()


if __name__ == "__main__":
    lifecycle.main(BatchConfig, "batch", run_batch)
