"""Checks that kernels can be compiled and launched from this environment: `python -m penstock.worker.engine.cuda`.

Run while an image for GPUs is built, where there is no GPU: a mistake ends the build, not the start of a worker.
"""

import sys

from penstock.worker.engine.cuda.requirements import CudaUnavailable
from penstock.worker.engine.cuda.toolchain import check_toolchain

if __name__ == "__main__":
    try:
        check_toolchain()
    except CudaUnavailable as error:
        sys.exit(f"no kernels: {error}")
