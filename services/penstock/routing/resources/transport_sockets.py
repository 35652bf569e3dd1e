"""Transport sockets: mutual TLS between a proxy and tiers of the mesh, and TLS to servers outside it."""

import re
from collections.abc import Collection

from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.transport_sockets.tls import v3 as tls
from envoy_data_plane.envoy.type.matcher import v3 as matchers
from envoy_data_plane.google.protobuf import Any

from penstock.chassis.security.identity import server_name
from penstock.routing.secrets import AUTHORITIES, IDENTITY, secret_file

TRANSPORT_SOCKET = "envoy.transport_sockets.tls"


def mutual_tls(secrets: str, tier: str, *, alpn: str) -> core.TransportSocket:
    """Connect to processes of `tier` alone, with the certificate in the proxy's folder `secrets`."""
    name = server_name(tier)
    expected = tls.SubjectAltNameMatcher(
        san_type=tls.SubjectAltNameMatcherSanType.DNS, matcher=matchers.StringMatcher(exact=name)
    )
    validation = tls.CommonTlsContextCombinedCertificateValidationContext(
        default_validation_context=tls.CertificateValidationContext(match_typed_subject_alt_names=[expected]),
        validation_context_sds_secret_config=_secret(secrets, AUTHORITIES),
    )
    latest = tls.TlsParametersTlsProtocol.TLSv1_3
    context = tls.UpstreamTlsContext(
        sni=name,
        common_tls_context=tls.CommonTlsContext(
            tls_params=tls.TlsParameters(tls_minimum_protocol_version=latest, tls_maximum_protocol_version=latest),
            tls_certificate_sds_secret_configs=[_secret(secrets, IDENTITY)],
            combined_validation_context=validation,
            alpn_protocols=[alpn],
        ),
    )
    return core.TransportSocket(name=TRANSPORT_SOCKET, typed_config=Any.pack(context))


def accepting_tls(secrets: str, trust_domain: str, tiers: Collection[str], *, alpn: str) -> core.TransportSocket:
    """Accept processes of `tiers` alone, with the certificate in the proxy's folder `secrets`."""
    expected = tls.SubjectAltNameMatcher(
        san_type=tls.SubjectAltNameMatcherSanType.URI, matcher=identities(trust_domain, tiers)
    )
    validation = tls.CommonTlsContextCombinedCertificateValidationContext(
        default_validation_context=tls.CertificateValidationContext(match_typed_subject_alt_names=[expected]),
        validation_context_sds_secret_config=_secret(secrets, AUTHORITIES),
    )
    latest = tls.TlsParametersTlsProtocol.TLSv1_3
    context = tls.DownstreamTlsContext(
        require_client_certificate=True,
        common_tls_context=tls.CommonTlsContext(
            tls_params=tls.TlsParameters(tls_minimum_protocol_version=latest, tls_maximum_protocol_version=latest),
            tls_certificate_sds_secret_configs=[_secret(secrets, IDENTITY)],
            combined_validation_context=validation,
            alpn_protocols=[alpn],
        ),
    )
    return core.TransportSocket(name=TRANSPORT_SOCKET, typed_config=Any.pack(context))


def identities(trust_domain: str, tiers: Collection[str]) -> matchers.StringMatcher:
    """Match the URI name of a certificate of one of `tiers`."""
    pattern = rf"spiffe://{re.escape(trust_domain)}/penstock/({'|'.join(sorted(tiers))})/[^/]+"
    return matchers.StringMatcher(safe_regex=matchers.RegexMatcher(regex=pattern))


def server_tls(host: str, *, alpn: str) -> core.TransportSocket:
    """Connect to a server outside the mesh, whose certificate names `host` and is signed by a public authority."""
    expected = tls.SubjectAltNameMatcher(
        san_type=tls.SubjectAltNameMatcherSanType.DNS, matcher=matchers.StringMatcher(exact=host)
    )
    validation = tls.CertificateValidationContext(
        system_root_certs=tls.CertificateValidationContextSystemRootCerts(), match_typed_subject_alt_names=[expected]
    )
    context = tls.UpstreamTlsContext(
        sni=host, common_tls_context=tls.CommonTlsContext(validation_context=validation, alpn_protocols=[alpn])
    )
    return core.TransportSocket(name=TRANSPORT_SOCKET, typed_config=Any.pack(context))


def _secret(folder: str, name: str) -> tls.SdsSecretConfig:
    path = core.PathConfigSource(path=f"{folder}/{secret_file(name)}")
    source = core.ConfigSource(path_config_source=path, resource_api_version=core.ApiVersion.V3)
    return tls.SdsSecretConfig(name=name, sds_config=source)
