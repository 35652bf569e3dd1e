"""From C++ sources to a shared library for this processor, compiled once and kept in the user's cache."""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import structlog

log = structlog.get_logger()

_SOURCES = Path(__file__).parent
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", "-pthread")
_TIMEOUT = 300.0  # s; a compilation takes some 5


class NativeUnavailable(Exception):
    """There is no native forward for this machine or model, and the message says why. Plain torch does the same."""


@functools.cache
def load_library() -> ctypes.CDLL:
    """Raises NativeUnavailable where it cannot be had."""
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        raise NativeUnavailable("there is no C++ compiler; install g++ to make CPU steps several times faster")
    library = _cache() / f"native-{_fingerprint(compiler)}.so"
    if not library.exists():
        _compile(compiler, library)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise NativeUnavailable(f"{library} does not load: {error}") from error


def _compile(compiler: str, library: Path) -> None:
    """Compile beside the final name and rename: whoever compiles at the same time ends with the same file."""
    log.info("native_compiling", compiler=compiler, library=str(library))
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        output = Path(folder) / library.name
        command = [compiler, *_FLAGS, str(_SOURCES / "forward.cpp"), "-o", str(output)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT)  # noqa: S603 - our own sources
        except subprocess.CalledProcessError as error:
            raise NativeUnavailable(f"{compiler} failed: {error.stderr.strip()[-500:]}") from error
        except subprocess.TimeoutExpired as error:
            raise NativeUnavailable(f"{compiler} took longer than {_TIMEOUT:.0f} s") from error
        output.replace(library)


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NativeUnavailable(f"{base} cannot be made ({error}); set XDG_CACHE_HOME to one that can") from error
    return base


def _fingerprint(compiler: str) -> str:
    """Of all that the library depends on: a cache may be shared by machines of several kinds."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted([*_SOURCES.glob("*.h"), *_SOURCES.glob("*.cpp")]):
        digest.update(source.read_bytes())
    digest.update(" ".join([compiler, *_FLAGS, _processor()]).encode())
    return digest.hexdigest()


def _processor() -> str:
    """What -march=native looks at."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return os.uname().machine
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))
