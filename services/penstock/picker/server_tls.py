"""The security of the picker's port: that of a mesh, or TLS for gateways that have no certificate."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from penstock.chassis.config import ConfigError
from penstock.chassis.security.certificate_pair import CertificateInvalid
from penstock.chassis.security.process import ProcessSecurity, open_security
from penstock.chassis.security.server_certificate import ServerCertificate
from penstock.picker.config import PickerConfig

log = structlog.get_logger()

SELF_SIGNED_NAME = "penstock-picker"
SELF_SIGNED_FOR = timedelta(days=3_650)  # longer than a process lives
CLOCK_SKEW = timedelta(minutes=5)


def picker_security(config: PickerConfig) -> ProcessSecurity:
    """Return the security that the settings describe. Raises ConfigError if a certificate cannot be used."""
    security = open_security(config)
    if not config.unauthenticated_tls:
        return security
    log.warning(
        "callers_unauthenticated",
        meaning="TLS asks callers for no certificate; everyone who reaches the port decides where requests go",
        instead="let a NetworkPolicy admit the gateway alone, or give it a certificate of the mesh",
    )
    return replace(security, server_certificate=_server_certificate(config))


def _server_certificate(config: PickerConfig) -> ServerCertificate:
    if not (config.server_certificate and config.server_key):
        return self_signed()
    try:
        return ServerCertificate(config.server_certificate, config.server_key)
    except (CertificateInvalid, OSError) as error:
        text = f"PENSTOCK_PICKER_SERVER_CERTIFICATE and PENSTOCK_PICKER_SERVER_KEY cannot be used: {error}"
        raise ConfigError(text) from error


def self_signed() -> ServerCertificate:
    """Return a certificate that nothing but itself has signed. Its key is on disk only while it is loaded."""
    with TemporaryDirectory(prefix="penstock-picker-") as folder:  # which this user alone can read
        chain, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        chain_pem, key_pem = _self_signed_pem()
        chain.write_bytes(chain_pem)
        key.write_bytes(key_pem)
        return ServerCertificate(chain, key, is_watched=False)


def _self_signed_pem() -> tuple[bytes, bytes]:
    """Return certificate and key, in PEM."""
    # ruff: noqa: PLC0415  # takes 50 ms to import, and is not needed otherwise
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SELF_SIGNED_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + SELF_SIGNED_FOR)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SELF_SIGNED_NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private
