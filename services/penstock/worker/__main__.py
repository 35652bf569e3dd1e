"""The worker process, which serves gRPC and supervises the engine process: `python -m penstock.worker`."""

from penstock.chassis import lifecycle
from penstock.chassis.lifecycle import background, stop_requested
from penstock.chassis.operators.listeners import OperatorListeners
from penstock.chassis.security.process import open_security
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from penstock.worker.config import WorkerConfig
from penstock.worker.runtime import WorkerRuntime
from penstock.worker.service import WorkerService


async def run(config: WorkerConfig) -> None:
    hello = hello_of("worker", config.instance_id, zone=config.zone)
    security = open_security(config)
    runtime = WorkerRuntime(config, hello, dialer=security.dialer)
    service = WorkerService(runtime, max_outbox_frames=config.max_outbox_frames)
    async with serving(
        config.listen,
        [(add_WorkerServiceServicer_to_server, service)],
        admin=AdminService("worker", config.instance_id, runtime.figures),
        observe=runtime.observations,
        operators=OperatorListeners.of(config),
        drain_grace=config.drain_grace,
        advertise=config.advertise,
        is_ready=False,  # until the engine is ready
        security=security,
    ) as server:
        hello.address = server.address
        runtime.on_ready = lambda is_ready: server.set_ready(is_ready=is_ready)
        async with background(
            runtime.engine.run(), runtime.watch_engine(), runtime.scheduler.run(), runtime.poison_broadcast.run()
        ):
            stop = await stop_requested()
            await runtime.drain(config.drain_grace if stop.grace is None else stop.grace, stop.forced)


if __name__ == "__main__":
    lifecycle.main(WorkerConfig, "worker", run)
