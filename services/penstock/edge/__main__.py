"""`python -m penstock.edge`: the whole object graph of an edge."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from penstock.chassis.admin import AdminService
from penstock.chassis.lifecycle import background, main, stop_requested
from penstock.chassis.server import Server, serving
from penstock.chassis.streams import PROTOCOL
from penstock.edge.catalog import Catalog
from penstock.edge.clock import Clock
from penstock.edge.config import EdgeConfig
from penstock.edge.gateway import Gateway
from penstock.edge.http.front import HttpFront
from penstock.edge.http.server import serving_http
from penstock.edge.request import limits
from penstock.edge.service import InferenceService
from penstock.edge.threads import Threads
from penstock.edge.tower import Tower
from penstock.v1.inference_pb2_grpc import add_InferenceServicer_to_server
from penstock.v1.stream_pb2 import Hello


async def run_edge(config: EdgeConfig) -> None:
    async with edge(config):
        await stop_requested()


@asynccontextmanager
async def edge(config: EdgeConfig) -> AsyncIterator[Server]:
    """An edge that serves; leaving the block drains it.

    It does not listen before it could answer, so that whoever asks it meanwhile is refused and goes elsewhere at once.
    """
    clock, hello = Clock(), Hello(protocol=PROTOCOL, instance_id=config.instance_id, tier="edge", zone=config.zone)
    with Threads(config.tokenizer_threads) as threads:
        catalog = Catalog(clock, threads, patience=config.model_patience)
        tower = Tower(config, hello, catalog, clock)
        gateway = Gateway(config, tower, catalog, threads)
        async with background(catalog.run(), tower.run()):
            await _arrived(tower, catalog, config.arrival_patience)
            async with (
                serving_http(config.http_listen, HttpFront(gateway, tower.has_joined.is_set), config.drain_grace),
                serving(
                    config.listen,
                    [(add_InferenceServicer_to_server, InferenceService(gateway, hello))],
                    admin=AdminService(
                        "edge", config.instance_id, tower.figures, tower.tables, token=config.admin_token
                    ),
                    drain_grace=config.drain_grace,
                    advertise=config.advertise,
                    is_ready=False,
                    message_bytes=limits.BODY_BYTES,
                ) as server,
                background(_ready_once_joined(tower, server)),
            ):
                yield server
            await tower.landed()


async def _arrived(tower: Tower, catalog: Catalog, patience: float) -> None:
    """Return once a request would go straight on; in a mesh where it cannot, after `patience` s, to say so."""
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await tower.has_joined.wait()
            await catalog.is_stocked()


async def _ready_once_joined(tower: Tower, server: Server) -> None:
    await tower.has_joined.wait()
    server.set_ready(is_ready=True)


if __name__ == "__main__":
    main(EdgeConfig, "edge", run_edge)
