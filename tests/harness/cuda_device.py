"""Where tests run Triton's kernels: on a GPU, else in Triton's interpreter, which is exact and slow, and float32 alone.

Whoever imports this does so before any kernel, and is skipped, with the reason, where Triton is missing.
"""

import os
import sys

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
DTYPES = [torch.float32, torch.bfloat16] if HAS_GPU else [torch.float32]

if not HAS_GPU:
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton is loaded already, without its interpreter, and there is no GPU", allow_module_level=True)
    os.environ["TRITON_INTERPRET"] = "1"  # read once, when Triton is loaded

pytest.importorskip("triton", reason="Triton is not installed: it comes with torch's CUDA build, or by pip")
