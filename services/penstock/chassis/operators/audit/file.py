"""The file of an audit log: appended line by line, flushed to disk, continued after a restart or a rotation."""

import fcntl
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import structlog

from penstock.chassis.config import ConfigError
from penstock.chassis.operators.audit.chain import BEGIN, RESUME, Chain, Entry, digest, parse

log = structlog.get_logger()

BLOCK_BYTES = 64 << 10

# Makes the entry of the log itself: action and parameters.
LogEntryFn = Callable[[str, dict[str, object]], Entry]


class Tail(NamedTuple):
    """The end of a file."""

    chain: Chain
    torn_bytes: int  # of a last line that a crash cut off; it stays and takes a number
    needs_newline: bool


class AuditFile:
    """One file, open for appending. Blocking: the caller runs it outside of the event loop, one call at a time."""

    def __init__(self, path: str, new_entry: LogEntryFn) -> None:
        self.path = path
        self._new_entry = new_entry
        self._chain = Chain()
        self._fd = -1
        self._size = 0  # as this process has left the file

    @property
    def chain(self) -> Chain:
        return self._chain

    def open(self) -> None:
        """Open or create the file, continue its chain, and record the start.

        Raises ConfigError if another process writes to the file, OSError if it cannot be written.
        """
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
            self._size = os.fstat(self._fd).st_size
            self._begin() if self._size == 0 else self._resume()
        except BaseException:
            self.close()
            raise

    def append(self, entry: Entry) -> bytes:
        """Write one line and flush it to disk; return it. Raises OSError, and then the file ends as before."""
        if self._fd < 0:
            self.open()
        elif self._is_moved():
            self._rotate()
        found = os.fstat(self._fd).st_size
        if found != self._size:
            self._record_change(found)
        return self._write(entry)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)  # releases the lock, too
            self._fd = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"the audit log {self.path} is in use by another process; each process needs a file of its own"
            raise ConfigError(text) from None

    def _begin(self) -> None:
        self._write(self._new_entry(BEGIN, {}))

    def _resume(self) -> None:
        tail = _read_tail(self._fd, self._size)
        self._chain = tail.chain
        if tail.torn_bytes:
            log.warning("audit_log_torn", path=self.path, bytes=tail.torn_bytes)
        entry = self._new_entry(RESUME, {"torn_bytes": tail.torn_bytes} if tail.torn_bytes else {})
        self._write(entry, before=b"\n" if tail.needs_newline else b"")

    def _is_moved(self) -> bool:
        """Whether the path names another file than the open one, as after a rotation."""
        try:
            found = Path(self.path).stat()
        except FileNotFoundError:
            return True
        mine = os.fstat(self._fd)
        return (found.st_dev, found.st_ino) != (mine.st_dev, mine.st_ino)

    def _rotate(self) -> None:
        """Begin the new file at the path, with the hash of the former file's last line as its first `previous`."""
        self.close()
        self.open()

    def _record_change(self, found: int) -> None:
        """Another writer has changed the file: say so, in the log and in the chain, which `verify` finds broken."""
        log.error("audit_log_changed", path=self.path, expected_bytes=self._size, found_bytes=found)
        self._size = found
        self._write(self._new_entry("log.changed", {"found_bytes": found}))

    def _write(self, entry: Entry, before: bytes = b"") -> bytes:
        line = self._chain.encode(entry)
        try:
            _write_all(self._fd, before + line)
            os.fsync(self._fd)
        except OSError:
            self._undo()
            raise
        self._chain = self._chain.after(line)
        self._size += len(before) + len(line)
        return line

    def _undo(self) -> None:
        """Remove what a failed write has left. If that fails as well, the next call continues over it."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            self.close()


def _write_all(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _read_tail(fd: int, size: int) -> Tail:
    """Return the end of a file that is not empty, from as few blocks as have a whole record."""
    length = BLOCK_BYTES
    while True:
        start = max(0, size - length)
        content = os.pread(fd, size - start, start)
        if tail := _tail_of(content, is_whole=start == 0):
            return tail
        length *= 4


def _tail_of(content: bytes, *, is_whole: bool) -> Tail | None:
    """Return the end of `content`, the whole file or its last part; None if that part has no whole record."""
    lines = content.removesuffix(b"\n").split(b"\n")
    needs_newline = not content.endswith(b"\n")
    if not is_whole:
        lines = lines[1:]  # the first one may have begun before
    for place in range(len(lines) - 1, -1, -1):
        if record := parse(lines[place]):
            last, torn = lines[-1], len(lines) - 1 - place
            return Tail(Chain(record["seq"] + torn, digest(last)), len(last) if torn else 0, needs_newline)
    return Tail(Chain(len(lines), digest(lines[-1])), len(lines[-1]), needs_newline) if is_whole else None


def with_result(entry: Entry, result: str, begun: int, **parameters: object) -> Entry:
    """Return the entry for the end of an action whose start is the line `begun`."""
    return replace(entry, result=result, begun=begun, parameters=parameters)
