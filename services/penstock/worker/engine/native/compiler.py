"""The shared library for the type of processor: part of an image, or compiled once and cached."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import structlog

log = structlog.get_logger()

SOURCES = Path(__file__).parent
PREBUILT_FOLDER = SOURCES / "built"  # the libraries of an image
_FLAGS = ("-std=c++20", "-O3", "-Wno-psabi", "-shared", "-fPIC", "-pthread")
_COMPILE_TIMEOUT_S = 300.0  # a compilation takes about 5 s


class NativeUnavailable(Exception):
    """The native forward pass does not support this machine or model, for the reason in the message; torch does."""


class CpuTarget(NamedTuple):
    """A type of processor. Workers of one type run the same code, so a text continues on another one bit for bit."""

    march: str  # the compiler's name
    required_flags: frozenset[str] = frozenset()  # flags of /proc/cpuinfo


_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
X86_TARGETS = (  # best first
    CpuTarget("sapphirerapids", _AVX512 | {"avx512_bf16", "avx512_vnni", "avx512_fp16", "amx_bf16", "amx_tile"}),
    CpuTarget("cooperlake", _AVX512 | {"avx512_bf16", "avx512_vnni"}),
    CpuTarget("x86-64-v4", _AVX512),
    CpuTarget("x86-64-v3", frozenset({"avx2", "bmi2", "fma", "f16c", "movbe"})),
    CpuTarget("x86-64"),
)


@functools.cache
def load_library() -> ctypes.CDLL:
    """Load the library of this machine, and compile it if needed. Raises NativeUnavailable."""
    target = host_target()
    name = library_name(target)
    library = next((each for each in (PREBUILT_FOLDER / name, _cache_folder() / name) if each.exists()), None)
    if library is None:
        library = _cache_folder() / name
        build(target, library)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise NativeUnavailable(f"{library} does not load: {error}") from error


def build(target: CpuTarget, library: Path) -> None:
    """Compile to a temporary file and rename it, so that processes that compile at the same time do not conflict."""
    compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")
    if compiler is None:
        raise NativeUnavailable("no C++ compiler is installed; install g++ to make CPU steps several times faster")
    log.info("native_compiling", compiler=compiler, target=target.march, library=str(library))
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            output = Path(folder) / library.name
            command = [compiler, *_FLAGS, f"-march={target.march}", str(SOURCES / "forward.cpp"), "-o", str(output)]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S)  # noqa: S603 - our own sources
            output.replace(library)
    except OSError as error:
        raise NativeUnavailable(
            f"{library} cannot be written ({error}); set XDG_CACHE_HOME to a writable folder"
        ) from error
    except subprocess.CalledProcessError as error:
        raise NativeUnavailable(f"{compiler} failed: {error.stderr.strip()[-500:]}") from error
    except subprocess.TimeoutExpired as error:
        raise NativeUnavailable(f"{compiler} took longer than {_COMPILE_TIMEOUT_S:.0f} s") from error


def host_target() -> CpuTarget:
    if platform.machine() != "x86_64":
        return CpuTarget("native")
    flags = _cpu_flags()
    return next(target for target in X86_TARGETS if target.required_flags <= flags)


def library_name(target: CpuTarget) -> str:
    """Return a name with a digest of the sources and flags of the library."""
    digest = hashlib.blake2b(" ".join(_FLAGS).encode(), digest_size=8)
    for source in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        digest.update(source.read_bytes())
    if target.march == "native":
        digest.update("\n".join(sorted(_cpu_flags())).encode())
    return f"{target.march}-{digest.hexdigest()}.so"


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "native"


def _cpu_flags() -> set[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return {word for line in lines if line.startswith(("flags", "Features")) for word in line.split(":")[1].split()}
