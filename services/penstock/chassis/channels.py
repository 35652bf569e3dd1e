"""Channels to other processes, and sets of peers that follow an address list or a DNS name."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import grpc
import structlog

log = structlog.get_logger()

MAX_MESSAGE_BYTES = 64 * 2**20  # a 100k-token prompt is 0.5 MB, a tokenizer 5 MB
KEEPALIVE_MS = 1_000
PING_TIMEOUT_MS = 1_500  # without it gRPC detects a frozen peer after a minute, even with keepalive
RESOLVE_INTERVAL_S = 5.0

# gRPC takes the least time between two attempts to connect for the time that each may last, too. An attempt with TLS
# takes four round trips, and a server on a busy machine a second more. A refused connection is repeated earlier.
CONNECT_TIMEOUT_MS = 5_000

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", 250),
    # One connection per channel: a shared connection would look like two links and fail as one.
    ("grpc.use_local_subchannel_pool", 1),
)


def channel(target: str) -> grpc.aio.Channel:
    """Open a plaintext channel to `target` that detects a frozen peer within seconds."""
    return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)


async def resolve(target: str) -> list[str]:
    """Return the addresses behind `target`: itself, or for `dns:///name:port` each current address of the name.

    Raises OSError if the lookup fails.
    """
    name = target.removeprefix("dns:///")
    if name == target:
        return [target]
    host, _, port = name.rpartition(":")
    found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    return sorted({_address(str(ip[0]), int(ip[1])) for *_, ip in found})


def _address(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


class AddressWatch:
    """The current addresses behind a list of targets; yields them once, and again after each change."""

    def __init__(self, targets: Sequence[str], *, interval_s: float = RESOLVE_INTERVAL_S) -> None:
        self._targets = targets
        self._interval_s = interval_s
        self._addresses_by_target: dict[str, list[str]] = {}

    async def __aiter__(self) -> AsyncIterator[frozenset[str]]:
        known: frozenset[str] | None = None
        while True:
            for target in self._targets:
                await self._resolve(target)
            present = frozenset(address for found in self._addresses_by_target.values() for address in found)
            if present != known:
                known = present
                yield present
            if not any(target.startswith("dns:///") for target in self._targets):
                return
            await asyncio.sleep(self._interval_s)

    async def _resolve(self, target: str) -> None:
        try:
            self._addresses_by_target[target] = await resolve(target)
        except OSError as error:  # keep the last addresses: a DNS outage is no reason to drop live peers
            log.warning("address_lookup_failed", target=target, error=str(error))


class PeerSet:
    """Runs `open_peer(address)`, usually a `Link.run`, once per current address; cancels it if the address is gone."""

    def __init__(
        self,
        targets: Sequence[str],
        open_peer: Callable[[str], Awaitable[None]],
        *,
        interval_s: float = RESOLVE_INTERVAL_S,
    ) -> None:
        self._watch = AddressWatch(targets, interval_s=interval_s)
        self._open = open_peer
        self._running: dict[str, asyncio.Task[None]] = {}

    @property
    def addresses(self) -> frozenset[str]:
        return frozenset(self._running)

    async def run(self) -> None:
        """Follow the addresses until cancelled; a crash of one peer's coroutine ends the set with its error."""
        async with asyncio.TaskGroup() as group:
            async for present in self._watch:
                for address in present - self.addresses:
                    self._running[address] = group.create_task(self._run_one(address), name=f"peer {address}")
                for address in self.addresses - present:
                    self._running.pop(address).cancel()

    async def _run_one(self, address: str) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._open(address)
