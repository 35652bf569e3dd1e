"""A certificate that is no identity of the mesh, with its key: read from files and checked."""

import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.chassis.security.certificates import handshake


class CertificateInvalid(ValueError):
    """The files hold no certificate with its key."""


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate chain and its private key, in PEM."""

    chain: bytes
    key: bytes = field(repr=False)
    expires_at: float = field(default=0.0, compare=False)  # Unix time; 0 if the certificate is not valid now


def read_pair(chain_path: Path, key_path: Path) -> CertificatePair:
    """Return the pair of two files. Raises CertificateInvalid or OSError."""
    pair = CertificatePair(chain_path.read_bytes(), key_path.read_bytes())
    try:
        # An empty password, because OpenSSL would ask the terminal for that of an encrypted key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain_path, key_path, password=b"")
    except ssl.SSLError as error:
        raise CertificateInvalid(f"{chain_path} and {key_path} are no certificate with its key: {error}") from error
    if pair != CertificatePair(chain_path.read_bytes(), key_path.read_bytes()):
        raise CertificateInvalid(f"{chain_path} or {key_path} changed while it was read")
    return replace(pair, expires_at=_expiry_of(chain_path, key_path))


def _expiry_of(chain_path: Path, key_path: Path) -> float:
    """Return the Unix time at which the certificate ends; 0 if it is not valid now.

    The standard library decodes a certificate only once a handshake has verified it, so that it is verified by itself.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(chain_path, key_path, password=b"")
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(chain_path)
    try:
        client_end, _ = handshake(server, client)
    except ssl.SSLError:
        return 0.0
    return float(ssl.cert_time_to_seconds(str((client_end.getpeercert() or {})["notAfter"])))
