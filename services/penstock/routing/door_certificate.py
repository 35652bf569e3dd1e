"""The certificate of the proxies' door: read from files, checked, and read again when the files change."""

import asyncio
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from penstock.chassis.security.certificates import handshake

log = structlog.get_logger()


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


@dataclass(slots=True)
class DoorCertificate:
    """The last valid pair of two files. A pair that is not valid never replaces it."""

    chain_path: Path
    key_path: Path
    pair: CertificatePair
    fault: str = ""  # why the present files were refused; logged once

    @classmethod
    async def load(cls, chain_path: Path, key_path: Path) -> "DoorCertificate":
        """Raises CertificateInvalid or OSError."""
        return cls(chain_path, key_path, await asyncio.to_thread(read_pair, chain_path, key_path))

    async def poll(self) -> CertificatePair:
        """Read the files again. Return the last valid pair."""
        try:
            pair = await asyncio.to_thread(read_pair, self.chain_path, self.key_path)
        except (CertificateInvalid, OSError) as error:
            if str(error) != self.fault:
                self.fault = str(error)
                log.error("door_certificate_invalid", error=self.fault, kept=True)  # noqa: TRY400  # no traceback needed
        else:
            self.fault = ""
            if pair != self.pair:
                self.pair = pair
                log.info("door_certificate_changed", path=str(self.chain_path))
        return self.pair
