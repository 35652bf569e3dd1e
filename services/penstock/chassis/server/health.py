"""grpc.health.v1 for one server: readiness by service, and liveness of the process."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer

from penstock.chassis.errors import NotFound

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN

READINESS = "readiness"  # NOT_SERVING while loading and from the start of a drain, like "" and each service
LIVENESS = "liveness"  # SERVING while the process responds, so that neither load nor a drain gets it killed


class Health(HealthServicer):  # type: ignore[misc]  # the library has no types
    """Answers Check and Watch; `set_ready` changes readiness for every watcher at once."""

    def __init__(self, services: Iterable[str]) -> None:
        self._ready_names = frozenset({"", READINESS, *services})
        self._is_ready = False
        self._is_closed = False
        self._changed = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        return self._is_ready

    def set_ready(self, *, is_ready: bool) -> None:
        self._is_ready = is_ready and not self._is_closed
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """Make the server unready for good, as it drains."""
        self._is_closed = True
        self.set_ready(is_ready=False)

    def status(self, service: str) -> int:
        if service == LIVENESS:
            return int(SERVING)
        if service not in self._ready_names:
            return int(SERVICE_UNKNOWN)
        return int(SERVING if self._is_ready else NOT_SERVING)

    async def Check(self, request: HealthCheckRequest, context: Any) -> HealthCheckResponse:
        status = self.status(request.service)
        if status == SERVICE_UNKNOWN:
            raise NotFound(f"this server has no service {request.service!r}", reason="SERVICE_UNKNOWN")
        return HealthCheckResponse(status=status)

    async def Watch(self, request: HealthCheckRequest, context: Any) -> AsyncIterator[HealthCheckResponse]:
        last_sent = -1
        while True:
            changed = self._changed
            status = self.status(request.service)
            if status != last_sent:
                last_sent = status
                yield HealthCheckResponse(status=status)
                continue  # the status may have changed while the response was written
            await changed.wait()
