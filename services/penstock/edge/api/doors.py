"""The limits of both APIs toward callers, from the settings, and their figures."""

from collections import Counter

from penstock.chassis.http2.limits import Http2Limits
from penstock.edge.api.grpc.door import GrpcDoor
from penstock.edge.api.http.connections import ConnectionLimits
from penstock.edge.api.http.protocol import HttpDoor
from penstock.edge.callers.connections import UnidentifiedCalls
from penstock.edge.callers.messages import UnfinishedMessages
from penstock.edge.config import EdgeConfig
from penstock.edge.gateway import Gateway
from penstock.edge.request import limits

FAILURE_WINDOW_S = 10.0
GRPC_WINDOW_BYTES = 64 << 10  # of a call whose caller is not known yet
# A proxy has limits of its own toward its clients, keeps connections, and all of them have one source.
PROXY_LIMITS = ConnectionLimits(max_connections=65_536, max_connections_per_source=0, idle_timeout=0.0)


class Doors:
    """One door for each API of an edge."""

    def __init__(self, config: EdgeConfig, gateway: Gateway) -> None:
        self.http = HttpDoor(config.connection_limits)
        self.proxy_http = HttpDoor(PROXY_LIMITS)
        self.grpc = GrpcDoor(
            gateway,
            UnidentifiedCalls(
                max_waiting=config.max_unidentified_calls,
                max_failures=config.max_failed_calls,
                window=FAILURE_WINDOW_S,
            ),
            UnfinishedMessages(max_slow=config.max_unfinished_messages, timeout=config.message_timeout),
        )
        self.grpc_limits = Http2Limits(
            message_bytes=limits.BODY_BYTES,
            window_bytes=GRPC_WINDOW_BYTES,
            max_streams=config.max_streams_per_connection,
            max_connections=config.max_connections,
            max_held_messages=config.max_streams_per_connection,  # unfinished messages are bounded over all connections
        )
        self._tables = (self.http.table, self.proxy_http.table)
        self._gateway = gateway

    async def run(self) -> None:
        """Apply the time limits of the gRPC door; those of the HTTP door run with its listener."""
        await self.grpc.end_unfinished()

    @property
    def http_connections(self) -> int:
        return sum(each.connections for each in self._tables)

    @property
    def refused(self) -> Counter[str]:
        """Connections and calls that were refused or closed for a limit, by reason."""
        counts = (*(each.refused for each in self._tables), self.grpc.unidentified.refused, self.grpc.messages.refused)
        return sum(counts, Counter[str]())

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot. Refusals are counted by reason."""
        return {
            "http_connections": self.http_connections,
            "unidentified_bytes": sum(each.unidentified_bytes for each in self._tables),
            "unfinished_messages": len(self.grpc.messages),
            "callers_asked": self._gateway.identification.asked,
            "callers_rejected": self._gateway.identification.rejected,
            **{f"refused_{reason.lower()}": float(count) for reason, count in self.refused.items()},
        }
