"""The certificate, key and authorities of a process, read from files and read again when a file changes.

A set of files is used once a handshake with itself has succeeded, in memory: then key and certificate match, an
authority of the set has signed the certificate, and it is valid now. A set that fails, such as a half-written one,
leaves the former set in use.
"""

import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from penstock.chassis.security.identity import IdentityInvalid, PeerIdentity, identity_of_names

log = structlog.get_logger()

CHECK_INTERVAL_S = 1.0  # between two looks at the files
_MAX_HANDSHAKE_TURNS = 10

Stamp = tuple[int, int, int]  # of a file: modification time in ns, size, inode


class CertificatesInvalid(Exception):
    """The files are not a certificate of Penstock with its key and authorities. The message says what to do."""


@dataclass(frozen=True, slots=True)
class CertificatePaths:
    """The files of one process, in PEM."""

    certificate: Path  # of this process, followed by intermediate certificates if there are any
    key: Path
    authorities: Path  # that sign the certificates of peers; several while one replaces another


@dataclass(frozen=True, slots=True)
class Certificates:
    """One set that was proven to work."""

    certificate: bytes
    key: bytes
    authorities: bytes
    identity: PeerIdentity
    expires_at: float  # Unix time
    server_context: ssl.SSLContext  # requires a certificate of the client
    client_context: ssl.SSLContext  # does not check the server's name
    http2_server: ssl.SSLContext  # as `server_context`, and offers HTTP/2
    http2_client: ssl.SSLContext  # as `client_context`, and asks for HTTP/2


class CertificateFiles:
    """The current certificates of a process. `current` may be called from any thread."""

    def __init__(self, paths: CertificatePaths, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises CertificatesInvalid if the files cannot be used."""
        self.paths = paths
        self._clock = clock
        self._lock = threading.Lock()
        self._stamps = _stamps(paths)
        self._rejected: tuple[Stamp, ...] = ()  # of the set that was logged
        self._current = load_certificates(paths)
        self._next_check_at = clock() + CHECK_INTERVAL_S

    def __repr__(self) -> str:
        return f"<CertificateFiles {self._current.identity.uri}>"

    def current(self) -> Certificates:
        """Return the newest set that works; looks at the files at most once a second."""
        if self._clock() >= self._next_check_at and self._lock.acquire(blocking=False):
            try:
                self._next_check_at = self._clock() + CHECK_INTERVAL_S
                self._reload_if_changed()
            finally:
                self._lock.release()
        return self._current

    def _reload_if_changed(self) -> None:
        try:
            stamps = _stamps(self.paths)
            if stamps == self._stamps:
                return
            loaded = load_certificates(self.paths)
            _check_same(loaded.identity, self._current.identity)
        except CertificatesInvalid as error:
            self._log_rejected(str(error))
            return
        self._stamps, self._current, self._rejected = stamps, loaded, ()
        log.info("certificates_loaded", identity=loaded.identity.uri, expires_in_s=round(loaded.expires_at - _now()))

    def _log_rejected(self, reason: str) -> None:
        """Log once per state of the files; it is tried again every second."""
        try:
            stamps = _stamps(self.paths)
        except CertificatesInvalid:
            stamps = ((0, 0, 0),)
        if stamps != self._rejected:
            self._rejected = stamps
            log.warning("certificates_not_loaded", because=reason, still_used=self._current.identity.uri)


def _check_same(new: PeerIdentity, current: PeerIdentity) -> None:
    if new != current:
        raise CertificatesInvalid(f"the new certificate is of {new.uri}, this process is {current.uri}; restart it")


def load_certificates(paths: CertificatePaths) -> Certificates:
    """Read and prove a set of files. Raises CertificatesInvalid."""
    texts = _read(paths)
    try:
        server, client = _context(paths, ssl.PROTOCOL_TLS_SERVER), _context(paths, ssl.PROTOCOL_TLS_CLIENT)
        _, server_end = handshake(server, client)
        own = dict(server_end.getpeercert() or {})
        identity = identity_of_names(own)
        expires_at = float(ssl.cert_time_to_seconds(str(own["notAfter"])))
    except (ssl.SSLError, OSError, ValueError) as error:
        raise CertificatesInvalid(_advice(paths, error)) from error
    if _read(paths) != texts:
        raise CertificatesInvalid(f"the files beside {paths.certificate} changed while they were read")
    http2 = [_context(paths, role, "h2") for role in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)]
    return Certificates(*texts, identity, expires_at, server, client, *http2)


def _advice(paths: CertificatePaths, error: Exception) -> str:
    if isinstance(error, IdentityInvalid):
        return f"{paths.certificate}: {error}; `penstock certs issue` makes such a certificate"
    reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or str(error)
    text = f"{paths.certificate}, {paths.key} and {paths.authorities} do not work together: {reason}"
    return f"{text}; the key must be of the certificate, and a certificate of the third file must have signed it"


def _context(paths: CertificatePaths, role: int, *protocols: str) -> ssl.SSLContext:
    context = ssl.SSLContext(role)
    if protocols:
        context.set_alpn_protocols(protocols)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if role == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # a resumed session would outlive the authority that verified it
    context.load_cert_chain(paths.certificate, paths.key, password=_no_password)
    context.load_verify_locations(paths.authorities)
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; store it without a password, readable by this process alone")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Connect the contexts in memory. Return the ends of the client and of the server. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    pending = list(ends)
    for _ in range(_MAX_HANDSHAKE_TURNS):
        pending = [end for end in pending if not _advance(end)]
        if not pending:
            return ends
    raise ssl.SSLError("the handshake does not end")


def _advance(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _read(paths: CertificatePaths) -> tuple[bytes, bytes, bytes]:
    try:
        return paths.certificate.read_bytes(), paths.key.read_bytes(), paths.authorities.read_bytes()
    except OSError as error:
        raise CertificatesInvalid(f"cannot read {error.filename}: {error.strerror}") from error


def _stamps(paths: CertificatePaths) -> tuple[Stamp, ...]:
    try:
        found = [path.stat() for path in (paths.certificate, paths.key, paths.authorities)]
    except OSError as error:
        raise CertificatesInvalid(f"cannot read {error.filename}: {error.strerror}") from error
    return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


def _now() -> float:
    return time.time()
