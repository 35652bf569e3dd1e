"""`python -m penstock.edge`: the whole object graph of an edge."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.lifecycle import background, main, stop_requested
from penstock.chassis.memory import map_large_blocks
from penstock.chassis.operators.listeners import OperatorListeners
from penstock.chassis.security.process import open_security
from penstock.chassis.server.server import Server, serving
from penstock.chassis.streams.protocol import hello_of
from penstock.edge.api.doors import Doors
from penstock.edge.api.grpc.batches import BatchesService
from penstock.edge.api.grpc.service import InferenceService
from penstock.edge.api.http.app import OpenAIApp
from penstock.edge.api.http.server import serving_http
from penstock.edge.api.lines.service import LineService
from penstock.edge.api.openai.responses.stored import ResponsesFormat
from penstock.edge.config import EdgeConfig
from penstock.edge.explain.service import EdgeAdmin
from penstock.edge.gateway import Gateway
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.models.planner import RequestPlanner
from penstock.edge.observations import observations
from penstock.edge.regions.drain import RegionDrain
from penstock.edge.regions.drain_watch import DrainWatch
from penstock.edge.regions.guests import GuestService
from penstock.edge.runner import RequestRunner
from penstock.edge.stored.service import StoredResponses
from penstock.edge.text.executor import TokenizerPools
from penstock.edge.upstreams.batches import BatchClient
from penstock.mesh.v1.batch_pb2_grpc import add_LineServiceServicer_to_server
from penstock.mesh.v1.region_pb2_grpc import add_RegionServiceServicer_to_server


async def run_edge(config: EdgeConfig) -> None:
    map_large_blocks()
    async with edge(config):
        await stop_requested()


@asynccontextmanager
async def edge(config: EdgeConfig) -> AsyncIterator[Server]:
    """Serve an edge; leaving the block drains it.

    The edge listens only once it can serve, so that a client which connects earlier switches to another edge at once.
    """
    clock = WallMonotonicClock()
    hello = hello_of("edge", config.instance_id, zone=config.zone)
    security = open_security(config)
    with TokenizerPools(config.tokenizer_threads) as threads:
        catalog = ModelCatalog(clock, threads, wait_timeout=config.model_wait_timeout, dialer=security.dialer)
        planner = RequestPlanner(catalog, threads, default_output_tokens=config.default_output_tokens)
        runner = RequestRunner(config, hello, catalog, planner, clock, dialer=security.dialer)
        gateway = Gateway(config, runner, catalog, planner, threads)
        doors = Doors(config, gateway)
        stored = StoredResponses(config, gateway, ResponsesFormat(), hello, clock, dialer=security.dialer)
        batches = BatchClient(config.batches, dialer=security.dialer)
        lines = LineService(gateway, hello)
        drain = RegionDrain(clock.now)
        watch = DrainWatch(config.routings, drain, hello, region=config.region, dialer=security.dialer)
        guests = GuestService(gateway, runner, catalog, hello, max_guests=config.max_guests, drain=drain)
        async with background(catalog.run(), runner.run(), doors.run(), stored.run(), batches.run(), watch.run()):
            await _wait_ready(runner, catalog, config.startup_timeout)
            app = OpenAIApp(gateway, stored, batches, runner.has_connected.is_set)
            async with (
                serving_http(
                    config.http_listen,
                    app,
                    config.drain_grace,
                    doors.http,
                    security,
                    reuses_port=config.reuse_port,
                ),
                serving_http(
                    config.proxy_http_listen,
                    app,
                    config.drain_grace,
                    doors.proxy_http,
                    security,
                    is_development=False,
                    reuses_port=config.reuse_port,
                ),
                serving(
                    config.listen,
                    [
                        (doors.grpc.add_to_server, InferenceService(gateway, hello, drain)),
                        (doors.grpc.add_batches_to_server, BatchesService(gateway, batches)),
                        (add_LineServiceServicer_to_server, lines),
                        (add_RegionServiceServicer_to_server, guests),
                    ],
                    admin=EdgeAdmin(
                        config.instance_id,
                        runner.history,
                        lambda: {
                            **runner.figures(),
                            **gateway.figures,
                            **doors.figures,
                            **stored.figures,
                            **lines.figures,
                            **guests.figures,
                            **watch.figures,
                        },
                        runner.tables,
                    ),
                    observe=partial(observations, runner, doors, guests),
                    operators=OperatorListeners.of(config),
                    drain_grace=config.drain_grace,
                    advertise=config.advertise,
                    is_ready=False,
                    limits=doors.grpc_limits,
                    security=security,
                    is_door=True,
                    proxy_listen=config.proxy_listen,
                    reuses_port=config.reuse_port,
                ) as server,
                background(_set_ready_once_connected(runner, server)),
            ):
                try:
                    yield server
                finally:
                    await lines.release()
                    await guests.release()
                    await stored.release(only_background=True)
            await stored.release()
            await runner.wait_drained()


async def _wait_ready(runner: RequestRunner, catalog: ModelCatalog, timeout: float) -> None:
    """Return once upstreams and models are ready, or after `timeout` s, so that clients receive an error."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await runner.has_connected.wait()
            await catalog.wait_ready()


async def _set_ready_once_connected(runner: RequestRunner, server: Server) -> None:
    await runner.has_connected.wait()
    server.set_ready(is_ready=True)


if __name__ == "__main__":
    main(EdgeConfig, "edge", run_edge)
