"""TLS of the proxies' door: the secret with its certificate, and the transport socket that uses it."""

from datetime import timedelta

from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.transport_sockets.tls import v3 as tls

from penstock.chassis.security.certificate_pair import CertificatePair
from penstock.routing.resources.clusters import ads_config_source, pack_any
from penstock.routing.resources.types import Resource, ResourceType

SECRET_NAME = "door"  # noqa: S105  # the name of the resource, not the secret
HANDSHAKE_TIMEOUT = timedelta(seconds=10)  # against clients that never finish their handshake
ALPN_PROTOCOLS = ["h2", "http/1.1"]
TLS12_CIPHERS = [  # forward secrecy and authenticated encryption; the suites of TLS 1.3 are fixed
    "[ECDHE-ECDSA-AES128-GCM-SHA256|ECDHE-ECDSA-CHACHA20-POLY1305]",
    "[ECDHE-RSA-AES128-GCM-SHA256|ECDHE-RSA-CHACHA20-POLY1305]",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
]


def door_secret(pair: CertificatePair) -> Resource:
    message = tls.Secret(
        name=SECRET_NAME,
        tls_certificate=tls.TlsCertificate(
            certificate_chain=core.DataSource(inline_bytes=pair.chain),
            private_key=core.DataSource(inline_bytes=pair.key),
        ),
    )
    return Resource(type=ResourceType.SECRET, name=SECRET_NAME, body=bytes(message))


def door_transport_socket() -> core.TransportSocket:
    """Serve the certificate of the secret, which may change without a new listener: open connections stay."""
    secret = tls.SdsSecretConfig(name=SECRET_NAME, sds_config=ads_config_source())
    common = tls.CommonTlsContext(
        tls_params=tls.TlsParameters(
            tls_minimum_protocol_version=tls.TlsParametersTlsProtocol.TLSv1_2,
            tls_maximum_protocol_version=tls.TlsParametersTlsProtocol.TLSv1_3,
            cipher_suites=TLS12_CIPHERS,
        ),
        alpn_protocols=ALPN_PROTOCOLS,
        tls_certificate_sds_secret_configs=[secret],
    )
    return core.TransportSocket(
        name="envoy.transport_sockets.tls", typed_config=pack_any(tls.DownstreamTlsContext(common_tls_context=common))
    )
