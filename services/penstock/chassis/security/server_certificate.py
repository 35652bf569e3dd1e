"""The certificate of a port that asks its callers for none, read again when its files change."""

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from penstock.chassis.security.certificate_pair import CertificateInvalid, read_pair

log = structlog.get_logger()

CHECK_INTERVAL_S = 1.0  # between two looks at the files

Stamp = tuple[int, int, int]  # of a file: modification time in ns, size, inode


class ServerCertificate:
    """The last valid pair of two files. `is_watched`: files that change replace it, if they are valid."""

    def __init__(
        self, chain: Path, key: Path, *, is_watched: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises CertificateInvalid or OSError."""
        self._paths = (chain, key)
        self._is_watched = is_watched
        self._clock = clock
        self._stamps = self._stat()
        self._load()
        self._next_check_at = clock() + CHECK_INTERVAL_S

    def _load(self) -> None:
        self.expires_at = read_pair(*self._paths).expires_at  # Unix time; 0 if the certificate is not valid now
        self._current = _context(*self._paths)

    def http2_context(self) -> ssl.SSLContext:
        """Return a context for a server of HTTP/2, with the certificate that is current in each handshake."""
        first = _empty_context()

        def use_current(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
            self._check()
            connection.context = self._current

        first.sni_callback = use_current  # called in each handshake, also if the client names no server
        return first

    def _check(self) -> None:
        if not self._is_watched or self._clock() < self._next_check_at:
            return
        self._next_check_at = self._clock() + CHECK_INTERVAL_S
        try:
            stamps = self._stat()
            if stamps == self._stamps:
                return
            self._stamps = stamps
            self._load()
        except (CertificateInvalid, OSError) as error:
            log.error("server_certificate_invalid", error=str(error), kept=True)  # noqa: TRY400  # no traceback needed
        else:
            log.info("server_certificate_changed", path=str(self._paths[0]))

    def _stat(self) -> tuple[Stamp, ...]:
        found = [path.stat() for path in self._paths]
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


def _context(chain: Path, key: Path) -> ssl.SSLContext:
    context = _empty_context()
    context.load_cert_chain(chain, key, password=b"")
    return context


def _empty_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # the newest that Envoy uses as a client by default
    context.set_alpn_protocols(["h2"])
    return context
