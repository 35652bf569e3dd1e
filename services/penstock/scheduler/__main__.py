"""One scheduler: `python -m penstock.scheduler`."""

import time
from uuid import uuid4

from penstock.chassis import lifecycle
from penstock.chassis.clocks import StallFreeClock
from penstock.chassis.kubernetes import KubernetesApi
from penstock.chassis.lifecycle import background, stop_requested
from penstock.chassis.operators.listeners import OperatorListeners
from penstock.chassis.security.process import open_security
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import hello_of
from penstock.keda.externalscaler_pb2_grpc import add_ExternalScalerServicer_to_server
from penstock.mesh.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from penstock.scheduler.autoscaling.external_scaler import ExternalScaler
from penstock.scheduler.autoscaling.fleet_demand import FleetDemand
from penstock.scheduler.autoscaling.pod_annotations import PodAnnotations
from penstock.scheduler.autoscaling.pod_costs import leases_by_pod
from penstock.scheduler.config import SchedulerConfig
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.leases import LeaseBook
from penstock.scheduler.service import SchedulerService
from penstock.scheduler.snapshot import tables

STALL_THRESHOLD_S = 0.5  # s between ticks; a longer gap means that this process stalled and may have missed frames


async def run(config: SchedulerConfig) -> None:
    hello = hello_of("scheduler", config.instance_id)
    # An instance id may be the name of a pod and outlive this process. Lease ids must be unique over restarts.
    prefix = f"{config.instance_id}-{uuid4().hex[:8]}"
    leases = LeaseBook(ttl=config.lease_ttl, prefix=prefix, clock=StallFreeClock(STALL_THRESHOLD_S))
    dispatcher = Dispatcher(leases=leases, look_ahead=config.look_ahead, express_slot_share=config.express_slot_share)
    security = open_security(config)
    demand = FleetDemand()
    service = SchedulerService(dispatcher, config.queues, hello, demand, dialer=security.dialer)
    scaler = ExternalScaler(demand, now=time.monotonic)
    annotations = []
    if config.pod_deletion_costs:
        api = KubernetesApi.of_pod("PENSTOCK_SCHEDULER_POD_DELETION_COSTS", "pod-deletion-costs")
        annotations.append(PodAnnotations(api, lambda: leases_by_pod(dispatcher.fleet)))
    async with serving(
        config.listen,
        [(add_SchedulerServiceServicer_to_server, service), (add_ExternalScalerServicer_to_server, scaler)],
        admin=AdminService("scheduler", config.instance_id, service.figures, lambda: tables(dispatcher.fleet)),
        observe=service.observations,
        operators=OperatorListeners.of(config),
        drain_grace=config.drain_grace,
        advertise=config.advertise,
        security=security,
    ) as server:
        hello.address = server.address
        async with background(service.run(), service.tick(), *(each.run() for each in annotations)):
            await stop_requested()
            scaler.drain()
            await service.drain()


if __name__ == "__main__":
    lifecycle.main(SchedulerConfig, "scheduler", run)
