"""The worker's front process: `python -m penstock.worker`."""

from penstock.chassis import lifecycle
from penstock.chassis.admin import AdminService
from penstock.chassis.lifecycle import background, stop_requested
from penstock.chassis.server import serving
from penstock.chassis.streams import PROTOCOL
from penstock.mesh.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from penstock.v1.stream_pb2 import Hello
from penstock.worker.config import WorkerConfig
from penstock.worker.front import Front
from penstock.worker.service import WorkerService


async def run(config: WorkerConfig) -> None:
    hello = Hello(protocol=PROTOCOL, instance_id=config.instance_id, tier="worker", zone=config.zone)
    front = Front(config, hello)
    service = WorkerService(front, stream_frames=config.stream_frames)
    async with serving(
        config.listen,
        [(add_WorkerServiceServicer_to_server, service)],
        admin=AdminService("worker", config.instance_id, front.figures, token=config.admin_token),
        drain_grace=config.drain_grace,
        advertise=config.advertise,
        is_ready=False,  # until the engine is
    ) as server:
        hello.address = server.address
        front.on_ready = lambda is_ready: server.set_ready(is_ready=is_ready)
        async with background(front.engine.run(), front.watch_engine(), front.attachment.run(), front.outcry.run()):
            stop = await stop_requested()
            await front.drain(config.drain_grace if stop.grace is None else stop.grace, stop.hurried)


if __name__ == "__main__":
    lifecycle.main(WorkerConfig, "worker", run)
