"""Channels to other processes of the mesh: each requires the server's certificate to be of a tier or an instance.

Each call of a tier has a connection of its own, whose handshake uses the current certificates of this process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import grpc

from penstock.chassis.channels import CHANNEL_OPTIONS, MAX_MESSAGE_BYTES
from penstock.chassis.http2.channel import Http2Channel, ServerTls
from penstock.chassis.security.certificates import CertificateFiles, Certificates
from penstock.chassis.security.credentials import channel_credentials
from penstock.chassis.security.identity import check_hello, server_name
from penstock.v1.stream_pb2 import Hello

HelloCheck = Callable[[Hello], None]


@dataclass(frozen=True, slots=True)
class Dialer:
    """Opens channels to other processes, in plaintext if this process has no certificates."""

    certificates: CertificateFiles | None = None

    def channel(self, address: str, tier: str, instance_id: str = "") -> grpc.aio.Channel:
        """Return a channel to a process of `tier`, and to no other instance than `instance_id` if it is given.

        It is for generated stubs, which use no more of `grpc.aio.Channel` than `Http2Channel` has.
        """
        files = self.certificates
        tls = ServerTls(lambda: files.current().http2_client, server_name(tier, instance_id)) if files else None
        return cast("grpc.aio.Channel", Http2Channel(address, tls, message_bytes=MAX_MESSAGE_BYTES))

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
    """Open a channel of `grpc.aio` with these certificates, for programs that are not part of the mesh.

    The server's certificate must have the DNS name `name`.
    """
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(address, channel_credentials(certificates), options=options)
