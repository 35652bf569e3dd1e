"""Check of the toolchain that Triton needs to compile and launch kernels, by using it. Needs no GPU."""

import os
import subprocess
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch

from penstock.worker.engine.cuda.requirements import CudaUnavailable

_TIMEOUT_S = 120.0  # a compilation takes 1 to 2 s


def check_toolchain() -> None:
    """Raise CudaUnavailable if torch has no CUDA, or Triton is missing or cannot compile its bindings."""
    if torch.version.cuda is None:
        raise CudaUnavailable(f"torch {torch.__version__} is a build without CUDA; install one from an index with CUDA")
    compile_bindings(_triton())


def compile_bindings(triton: Path) -> None:
    """Compile and link the C bindings that Triton compiles at the first launch of a kernel.

    The driver's own library is not linked, because the node provides it.
    """
    nvidia = triton / "backends" / "nvidia"
    includes = [f"-I{nvidia / 'include'}", f"-I{sysconfig.get_path('include')}"]
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder) / "bindings.so")
        command = [os.environ.get("CC", "gcc"), str(nvidia / "driver.c"), "-O1", "-shared", "-fPIC", "-o", output]
        try:
            subprocess.run([*command, *includes], check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)  # noqa: S603
        except OSError as error:
            raise CudaUnavailable(f"{command[0]} cannot be run ({error}); install gcc or set CC") from error
        except subprocess.CalledProcessError as error:
            raise CudaUnavailable(f"{command[0]} failed: {error.stderr.strip()[:500]}") from error


def _triton() -> Path:
    found = find_spec("triton")
    if found is None or found.origin is None:
        raise CudaUnavailable("Triton is not installed; install torch's CUDA build, which brings it")
    return Path(found.origin).parent
