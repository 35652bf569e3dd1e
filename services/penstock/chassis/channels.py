"""Channels to other processes, and sets of them that follow an address list or a DNS name."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import grpc
import structlog

log = structlog.get_logger()

MAX_MESSAGE_BYTES = 64 * 2**20  # a 100k-token prompt is 0.5 MB, a tokenizer 5 MB
KEEPALIVE_MS = 1_000
PING_TIMEOUT_MS = 1_500  # without it a frozen peer is noticed after a minute, whatever keepalive says
RESOLVE_INTERVAL_S = 5.0  # s

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 250),
    # One connection per channel: processes must not share what looks like two links and dies as one.
    ("grpc.use_local_subchannel_pool", 1),
)


def channel(target: str) -> grpc.aio.Channel:
    """Open a plaintext channel to `target` that notices a frozen peer within seconds."""
    return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)


async def resolve(target: str) -> list[str]:
    """Addresses behind `target`: itself, or for `dns:///name:port` each address the name has now.

    Raises OSError when the name cannot be looked up.
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
    """The present addresses behind a list of targets; yields them once, and again whenever they change."""

    def __init__(self, targets: Sequence[str], *, interval_s: float = RESOLVE_INTERVAL_S) -> None:
        self._targets = targets
        self._interval_s = interval_s  # s
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
        except OSError as error:  # keep the addresses we had: DNS being away is no reason to drop live peers
            log.warning("address_lookup_failed", target=target, error=str(error))


class PeerSet:
    """Runs `open(address)` once for each present address, and ends it when the address is gone.

    `open` runs for as long as the peer is wanted (a `Link.run` usually); it is cancelled to end it.
    """

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
        """Keep the set until cancelled; a crash of one peer's coroutine ends the set with its error."""
        async with asyncio.TaskGroup() as group:
            async for present in self._watch:
                for address in present - self.addresses:
                    self._running[address] = group.create_task(self._run_one(address), name=f"peer {address}")
                for address in self.addresses - present:
                    self._running.pop(address).cancel()

    async def _run_one(self, address: str) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._open(address)
