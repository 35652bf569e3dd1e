"""The batch lane in one process: the public service of an edge, the batch tier with a store, and an edge for lines."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass

from line_edges import TIMEOUT_S, LineEdge, line_edge
from penstock.batch.config import BatchConfig
from penstock.batch.runner.edges import EdgeLinks
from penstock.batch.runner.runner import BatchRunner
from penstock.batch.service import BatchService
from penstock.batch.store.job_worker import JobWorker
from penstock.batch.store.opening import opened_store
from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.errors import Unauthenticated
from penstock.chassis.lifecycle import background
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import hello_of
from penstock.edge.api.grpc.batches import BatchesService
from penstock.edge.upstreams.batches import BatchClient
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.batch_pb2_grpc import add_BatchServiceServicer_to_server
from penstock.v1.batches_pb2_grpc import add_BatchesServicer_to_server

KEY = "pk_acme_secret"


class KeyGateway:
    """In the place of the edge's gateway: one key of one tenant, for which lines may run later."""

    async def identify(self, credential, identity_header):
        await self.authenticate(credential)

    async def authenticate(self, credential):
        if credential.bearer != KEY:
            raise Unauthenticated("the key is not known", reason="KEY_UNKNOWN")
        return Identity(tenant_id="acme", key_id="acme")

    async def delegate(self, credential):
        await self.authenticate(credential)
        return b"delegation"


@dataclass
class BatchLane:
    """`address` serves callers. `edge` runs the lines."""

    address: str
    edge: LineEdge


@asynccontextmanager
async def batch_lane(folder):
    config = BatchConfig(store=":memory:", folder=str(folder))
    with opened_store(config, WallMonotonicClock().now) as store:
        tier = [(add_BatchServiceServicer_to_server, BatchService(store))]
        async with line_edge() as edge, serving("127.0.0.1:0", tier, drain_grace=0.0) as inner:
            edges = EdgeLinks((edge.address,), hello_of("batch", "batch-1"))
            runner, client = BatchRunner("batch-1", store, edges), BatchClient((inner.address,))
            door = [(add_BatchesServicer_to_server, BatchesService(KeyGateway(), client))]
            async with (
                background(client.run(), edges.run(), runner.run(), JobWorker(store).run()),
                serving("127.0.0.1:0", door, drain_grace=0.0) as outer,
            ):
                async with asyncio.timeout(TIMEOUT_S):
                    while not edges.links_up:  # noqa: ASYNC110  # a link has no event for tests
                        await asyncio.sleep(0.005)
                yield BatchLane(outer.address, edge)
