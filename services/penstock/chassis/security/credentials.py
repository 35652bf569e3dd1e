"""Credentials of gRPC, and TLS contexts for HTTP, that use the current certificates in each handshake."""

import ssl
import time
from collections.abc import Callable
from typing import Any

import grpc

from penstock.chassis.security.certificates import CertificateFiles, Certificates

# gRPC frees the former configuration as soon as `fetch` has returned a new one, although another thread may have passed
# the lock around `fetch` and be about to begin its handshake with the former one, which ends the process. Such a thread
# needs microseconds; all others wait for the lock. The delay is once per change of the certificates.
SWAP_DELAY_S = 0.1


def server_credentials(files: CertificateFiles) -> grpc.ServerCredentials:
    """Return credentials that require a certificate of the client. Each handshake uses the current certificates."""
    served = files.current()

    def fetch() -> Any:
        """Return the configuration of one handshake; None if it did not change. Called by threads of gRPC."""
        nonlocal served
        latest = files.current()
        if latest is served:
            return None
        served = latest
        time.sleep(SWAP_DELAY_S)
        return _configuration(latest)

    return grpc.dynamic_ssl_server_credentials(_configuration(served), fetch, require_client_authentication=True)


def _configuration(certificates: Certificates) -> Any:
    pairs = [(certificates.key, certificates.certificate)]
    return grpc.ssl_server_certificate_configuration(pairs, root_certificates=certificates.authorities)


def channel_credentials(certificates: Certificates) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(certificates.authorities, certificates.key, certificates.certificate)


def http_context(files: CertificateFiles) -> ssl.SSLContext:
    """Return a context for an HTTP server that requires a certificate of the client, current in each handshake."""
    return _server_context(lambda: files.current().server_context)


def http2_context(files: CertificateFiles) -> ssl.SSLContext:
    """Return a context for a server of HTTP/2 that requires a certificate of the client, current in each handshake."""
    context = _server_context(lambda: files.current().http2_server)
    context.set_alpn_protocols(["h2"])
    return context


def _server_context(current: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    first = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    first.verify_mode = ssl.CERT_REQUIRED
    first.minimum_version = ssl.TLSVersion.TLSv1_3
    first.num_tickets = 0

    def use_current(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = current()

    first.sni_callback = use_current  # called in each handshake, also if the client names no server
    return first
