"""ExternalScaler: answers KEDA with the workers that a model needs. It contains no policy.

The trigger of a ScaledObject names the model in its metadata, as `model`. The target is one worker per replica, so that
the HPA wants as many replicas as workers are needed. While the demand of a shard is unknown, every call fails with
UNAVAILABLE / DEMAND_UNKNOWN, and KEDA and the HPA keep the number of replicas.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from penstock.chassis.errors import InvalidArgument
from penstock.keda import externalscaler_pb2 as pb
from penstock.keda.externalscaler_pb2_grpc import ExternalScalerServicer
from penstock.mesh.limits.bounds import MODEL_NAME_CHARS
from penstock.scheduler.autoscaling.fleet_demand import FleetDemand

METRIC_NAME = "workers-needed"
MODEL_KEY = "model"  # of the metadata
MAX_SILENCE_S = 1.0  # s between two looks of a stream, which detect that the demand has become unknown


class ExternalScaler(ExternalScalerServicer):
    """The calls of KEDA. `now` returns s of the clock of the reports."""

    def __init__(self, demand: FleetDemand, *, now: Callable[[], float]) -> None:
        self._demand = demand
        self._now = now
        self._changed = asyncio.Event()
        self._is_draining = False
        demand.on_changed = self._notify

    def drain(self) -> None:
        """End the streams. KEDA opens them at another scheduler."""
        self._is_draining = True
        self._notify()

    async def IsActive(self, request: pb.ScaledObjectRef, context: Any) -> pb.IsActiveResponse:
        return pb.IsActiveResponse(result=self._workers(request) > 0)

    async def StreamIsActive(self, request: pb.ScaledObjectRef, context: Any) -> AsyncIterator[pb.IsActiveResponse]:
        sent = None
        while not self._is_draining:
            if (is_active := self._workers(request) > 0) != sent:
                yield pb.IsActiveResponse(result=is_active)
                sent = is_active
            with suppress(TimeoutError):
                async with asyncio.timeout(MAX_SILENCE_S):
                    await self._changed.wait()

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Any) -> pb.GetMetricSpecResponse:
        _model_of(request)
        return pb.GetMetricSpecResponse(
            metricSpecs=[pb.MetricSpec(metricName=METRIC_NAME, targetSize=1, targetSizeFloat=1.0)]
        )

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Any) -> pb.GetMetricsResponse:
        workers = self._workers(request.scaledObjectRef)
        value = pb.MetricValue(metricName=METRIC_NAME, metricValue=math.ceil(workers), metricValueFloat=workers)
        return pb.GetMetricsResponse(metricValues=[value])

    def _workers(self, scaled_object: pb.ScaledObjectRef) -> float:
        return self._demand.workers(_model_of(scaled_object), self._now())

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _model_of(scaled_object: pb.ScaledObjectRef) -> str:
    """Return the model of a ScaledObject. Raises InvalidArgument / SCALED_MODEL_MISSING."""
    model = scaled_object.scalerMetadata.get(MODEL_KEY, "")
    if not 1 <= len(model) <= MODEL_NAME_CHARS:
        text = (
            f"the trigger's metadata must have `{MODEL_KEY}`: the name of a model, 1 to {MODEL_NAME_CHARS} characters"
        )
        raise InvalidArgument(text, field=f"scalerMetadata.{MODEL_KEY}", reason="SCALED_MODEL_MISSING")
    return model
