"""What the GPU's own forward needs of a machine, looked at without loading any of it."""

import os
import shutil
from importlib.util import find_spec

import torch

_MIN_CAPABILITY = (8, 0)  # Ampere: before it there is no bfloat16


class CudaUnavailable(Exception):
    """There is no forward of our own for this GPU or image, and the message says why. Plain torch does the same."""


def check_cuda(device: torch.device) -> None:
    """Raises CudaUnavailable."""
    if find_spec("triton") is None:
        raise CudaUnavailable("Triton is not installed; install torch's CUDA build, which brings it")
    compiler = os.environ.get("CC", "gcc")
    if not (shutil.which(compiler) or shutil.which("clang")):
        raise CudaUnavailable(f"Triton needs a C compiler and {compiler} is not here; install gcc or set CC")
    capability = torch.cuda.get_device_capability(device)
    if capability < _MIN_CAPABILITY:
        raise CudaUnavailable(f"{device} has compute capability {capability}, below {_MIN_CAPABILITY}")
