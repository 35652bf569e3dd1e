"""The certificate of the proxies' door, read again when its files change."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import structlog

from penstock.chassis.security.certificate_pair import CertificateInvalid, CertificatePair, read_pair

log = structlog.get_logger()


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
