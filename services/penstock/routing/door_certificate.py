"""The certificate of the proxies' door: read from files, checked, and read again when the files change."""

import asyncio
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import structlog

log = structlog.get_logger()


class CertificateInvalid(ValueError):
    """The files hold no certificate with its key."""


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate chain and its private key, in PEM."""

    chain: bytes
    key: bytes = field(repr=False)


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
    return pair


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
