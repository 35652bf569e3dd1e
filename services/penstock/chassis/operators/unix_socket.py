"""Unix sockets that this user alone can connect to."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.chassis.config import ConfigError

MAX_PATH_BYTES = 103  # of a socket: 107 on Linux, 103 on macOS


def path_of(listen: str) -> Path:
    """Return the path of `unix:PATH` or `unix://PATH`."""
    return Path(listen.removeprefix("unix:").removeprefix("//"))


def is_path_short(path: Path) -> bool:
    """Whether the operating system accepts the path for a socket."""
    return len(os.fsencode(path)) <= MAX_PATH_BYTES


def remove_stale_socket(path: Path) -> None:
    """Remove the socket of a process that has been killed.

    gRPC would replace any socket, also that of a process which listens. Raises ConfigError if one listens there, or if
    the path cannot be used.
    """
    if not is_path_short(path):
        length = len(os.fsencode(path))
        raise ConfigError(
            f"the path of the socket {path} has {length} bytes, the limit is {MAX_PATH_BYTES}; use a shorter one"
        )
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ConfigError(f"cannot listen on {path}: make the folder {path.parent} first") from None
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"cannot listen on {path}: it is not a socket; remove it or name another path")
    if _has_listener(path):
        raise ConfigError(f"cannot listen on {path}: another process listens there; stop it or name another path")
    path.unlink(missing_ok=True)


def _has_listener(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # a full backlog, or a socket of another user
            return True
    return True


@contextmanager
def private_files() -> Iterator[None]:
    """Create files and sockets of the block with mode 0600, so that no moment of a wider mode exists."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
