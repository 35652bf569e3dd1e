"""The forward pass on a GPU: Triton kernels and cuBLAS matrix products, with decode steps as CUDA graphs.

Only `runner` and what it imports need Triton, which comes with torch's CUDA build.
"""

from penstock.worker.engine.cuda.requirements import CudaUnavailable, check_cuda

__all__ = ["CudaUnavailable", "check_cuda"]
