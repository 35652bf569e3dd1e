"""The device for Triton's kernels in tests: a GPU, or Triton's interpreter, which is exact and slow.

Triton reads the choice when it is loaded, so a test module imports this before any kernel.
"""

import os
import sys

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
DTYPES = [torch.float32, torch.bfloat16]
NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="there is no GPU here")]

FEW_PROGRAMS = 8  # of a decode: here each costs milliseconds, also where there is no split for it


def interpret() -> None:
    """Run all later kernels in Triton's interpreter, with products as on a GPU.

    Products of bfloat16 are those of tensor cores. The bits of a row do not depend on its place in a tile, unlike in
    OpenBLAS on some processors.
    """
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("Triton is loaded already, without its interpreter: import cuda_device before any kernel")
    os.environ["TRITON_INTERPRET"] = "1"
    import numpy as np
    from triton.language import bfloat16
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    def widened(factor):
        """The interpreter stores bfloat16 as bits in uint16 and would multiply those."""
        if factor.dtype.scalar != bfloat16:
            return factor.data
        return (factor.data.astype(np.uint32) << 16).view(np.float32)

    def create_dot(a, b, total, *_options):
        product = np.einsum("ij,jk->ik", widened(a), widened(b), dtype=total.data.dtype)
        return TensorHandle(product + total.data, total.dtype.scalar)

    interpreter_builder.create_dot = create_dot

    from penstock.worker.engine.cuda import attention

    attention.DECODE_PROGRAMS = FEW_PROGRAMS


if not HAS_GPU:
    interpret()
