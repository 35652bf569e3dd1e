"""Requirements of the CUDA forward pass, checked without loading any library for it."""

import os
import shutil
from importlib.util import find_spec

import torch

_MIN_CAPABILITY = (8, 0)  # Ampere, the first with bfloat16


class CudaUnavailable(Exception):
    """The CUDA forward pass cannot run on this GPU or image, for the reason in the message; plain torch can."""


def check_cuda(device: torch.device) -> None:
    """Raise CudaUnavailable if a requirement is not met."""
    if find_spec("triton") is None:
        raise CudaUnavailable("Triton is not installed; install torch's CUDA build, which brings it")
    compiler = os.environ.get("CC", "gcc")
    if not (shutil.which(compiler) or shutil.which("clang")):
        raise CudaUnavailable(f"Triton needs a C compiler and {compiler} is not installed; install gcc or set CC")
    capability = torch.cuda.get_device_capability(device)
    if capability < _MIN_CAPABILITY:
        raise CudaUnavailable(f"{device} has compute capability {capability}, below {_MIN_CAPABILITY}")
