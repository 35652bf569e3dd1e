"""The security of one process: its certificates, its identity, and how it binds ports and opens channels."""

from dataclasses import dataclass
from ipaddress import ip_address
from uuid import uuid4

import grpc
import structlog

from penstock.chassis.config import ConfigError, ServiceConfig
from penstock.chassis.http2.server import Http2Server
from penstock.chassis.security.certificates import CertificateFiles, CertificatePaths, CertificatesInvalid
from penstock.chassis.security.channels import Dialer
from penstock.chassis.security.credentials import http2_context, server_credentials
from penstock.chassis.security.identity import START_SEPARATOR, instance_of
from penstock.chassis.security.server_certificate import ServerCertificate

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSecurity:
    """What a process needs to listen and to connect. Without certificates, plaintext is for loopback alone."""

    certificates: CertificateFiles | None = None
    is_insecure: bool = False  # plaintext off loopback is wanted
    server_certificate: ServerCertificate | None = None  # of a tier whose callers need none

    @property
    def dialer(self) -> Dialer:
        return Dialer(self.certificates)

    @property
    def trust_domain(self) -> str:
        """The trust domain whose peers are served; empty without certificates."""
        return self.certificates.current().identity.trust_domain if self.certificates else ""

    def bind(self, server: grpc.aio.Server | Http2Server, listen: str, *, is_development_door: bool = False) -> int:
        """Bind `listen` and return the port: Unix sockets in plaintext, other addresses with mutual TLS.

        A development door is in plaintext on loopback. A `server_certificate` is for the server of the tier alone, not
        for that of operators. Raises ConfigError if plaintext would be served off loopback,
        RuntimeError if the port is taken.
        """
        if self.server_certificate and isinstance(server, Http2Server) and not listen.startswith("unix:"):
            return server.add_port(listen, self.server_certificate.http2_context())
        files = self.certificates if self.is_mutual(listen, is_development_door=is_development_door) else None
        if files is None:
            self.check_plaintext(listen)
        if isinstance(server, Http2Server):
            return server.add_port(listen, http2_context(files) if files else None)
        return server.add_secure_port(listen, server_credentials(files)) if files else server.add_insecure_port(listen)

    def is_mutual(self, listen: str, *, is_development_door: bool = False) -> bool:
        """Whether the port at `listen` requires certificates."""
        is_local = listen.startswith("unix:") or (is_development_door and is_loopback_address(listen))
        return self.certificates is not None and not is_local

    def check_plaintext(self, listen: str) -> None:
        """Raise ConfigError if plaintext must not be served at `listen`."""
        if not (self.is_insecure or listen.startswith("unix:") or is_loopback_address(listen)):
            text = f"{listen} is not on loopback, and plaintext is served on loopback alone"
            raise ConfigError(
                f"{text}; set PENSTOCK_TLS_CERTIFICATE, PENSTOCK_TLS_KEY and PENSTOCK_TLS_CA (`penstock certs` makes "
                "the files), or PENSTOCK_INSECURE=true to serve everyone who reaches this address"
            )


LOCAL = ProcessSecurity()  # plaintext on loopback


def open_security(config: ServiceConfig) -> ProcessSecurity:
    """Return the security that the settings describe. Raises ConfigError if the certificates cannot be used."""
    if config.insecure:
        log.warning(
            "insecure",
            meaning="peers are not authenticated, and connections are in plaintext",
            instead="set PENSTOCK_TLS_CERTIFICATE, PENSTOCK_TLS_KEY and PENSTOCK_TLS_CA, and unset PENSTOCK_INSECURE",
        )
    return ProcessSecurity(certificates=_open_files(config), is_insecure=config.insecure)


def new_instance_id(tier: str) -> str:
    return f"{tier}-{uuid4().hex[:8]}"


def instance_id_of(config: ServiceConfig, tier: str) -> str:
    """Return the instance id of this start: the configured one, or a new one of the certificate's instance.

    Raises ConfigError if the certificate is of another tier, trust domain or instance than the settings.
    """
    files = _open_files(config)
    if files is None:
        return config.instance_id or new_instance_id(tier)
    identity = files.current().identity
    certificate = f"the certificate {files.paths.certificate} is of {identity.uri}"
    if identity.tier != tier:
        raise ConfigError(f"{certificate}, this process is of tier {tier}; name its own in PENSTOCK_TLS_CERTIFICATE")
    if identity.trust_domain != config.trust_domain:
        raise ConfigError(f"{certificate}, PENSTOCK_TRUST_DOMAIN is {config.trust_domain}; set both alike")
    if config.instance_id and instance_of(config.instance_id) != identity.instance_id:
        name = f"PENSTOCK_{tier.upper()}_INSTANCE_ID"
        raise ConfigError(f"{certificate}, {name} is {config.instance_id}; unset {name} or use its certificate")
    return config.instance_id or f"{identity.instance_id}{START_SEPARATOR}{uuid4().hex[:8]}"


def _open_files(config: ServiceConfig) -> CertificateFiles | None:
    if not (config.tls_certificate and config.tls_key and config.tls_ca):
        return None
    try:
        return CertificateFiles(CertificatePaths(config.tls_certificate, config.tls_key, config.tls_ca))
    except CertificatesInvalid as error:
        raise ConfigError(str(error)) from error


def is_loopback_address(listen: str) -> bool:
    """Whether host:port is on loopback. Of names, only localhost is."""
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
