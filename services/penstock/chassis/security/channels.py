"""Channels to other processes of the mesh: each requires the server's certificate to be of a tier or an instance.

The credentials of a gRPC channel never change. A `MutualChannel` therefore opens a new channel for its next call once
the certificates have changed; calls that run stay on the channel on which they began.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import grpc

from penstock.chassis.channels import CHANNEL_OPTIONS, channel
from penstock.chassis.security.certificates import CertificateFiles, Certificates
from penstock.chassis.security.credentials import channel_credentials
from penstock.chassis.security.identity import check_hello, server_name
from penstock.v1.stream_pb2 import Hello

# gRPC also takes the least time between two attempts to connect for the time that each may last, with a minimum of
# 100 ms. A server that is busy takes longer for a handshake, which asks Python for the current certificates.
HANDSHAKE_TIMEOUT_MS = 2_000
MUTUAL_CHANNEL_OPTIONS = tuple(
    (name, HANDSHAKE_TIMEOUT_MS if name == "grpc.min_reconnect_backoff_ms" else value)
    for name, value in CHANNEL_OPTIONS
)

HelloCheck = Callable[[Hello], None]


@dataclass(frozen=True, slots=True)
class Dialer:
    """Opens channels to other processes, in plaintext if this process has no certificates."""

    certificates: CertificateFiles | None = None

    def channel(self, address: str, tier: str, instance_id: str = "") -> grpc.aio.Channel:
        """Open a channel to a process of `tier`, and to no other instance than `instance_id` if it is given."""
        if self.certificates is None:
            return channel(address)
        return MutualChannel(address, self.certificates, server_name(tier, instance_id))

    def hello_check(self, tier: str, instance_id: str = "") -> HelloCheck | None:
        """Return a check of the hello of the server that a channel with these arguments connects to.

        The instance of a server is verified only if it is given. Otherwise its hello may name any instance of the tier.
        """
        if self.certificates is None:
            return None
        return lambda hello: check_hello(hello, tier, instance_id)

    def key(self, address: str, tier: str, instance_id: str) -> tuple[str, str]:
        """Return a key under which connections to `address` can be shared."""
        return address, server_name(tier, instance_id) if self.certificates else ""


PLAINTEXT = Dialer()


def mutual_channel(address: str, certificates: Certificates, name: str) -> grpc.aio.Channel:
    """Open a channel with these certificates to a server whose certificate has the DNS name `name`."""
    options = (*MUTUAL_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(address, channel_credentials(certificates), options=options)


class MutualChannel(grpc.aio.Channel):
    """A channel whose calls use the current certificates.

    Calls that run when the certificates change go on over the former channel; it is kept until the next change.
    """

    def __init__(self, address: str, files: CertificateFiles, name: str) -> None:
        self._address = address
        self._files = files
        self._name = name
        self._certificates = files.current()
        self._channel = mutual_channel(address, self._certificates, name)
        self._former: grpc.aio.Channel | None = None

    def _current(self) -> grpc.aio.Channel:
        latest = self._files.current()
        if latest is not self._certificates:
            self._certificates = latest
            self._former, self._channel = self._channel, mutual_channel(self._address, latest, self._name)
        return self._channel

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        if self._former:
            await self._former.close(grace)
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        return self._current().unary_unary(*args, **options)

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        return self._current().unary_stream(*args, **options)

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return self._current().stream_unary(*args, **options)

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return self._current().stream_stream(*args, **options)
