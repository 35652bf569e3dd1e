"""Checks that this environment can compile and launch kernels: `python -m penstock.worker.engine.cuda`.

The build of a GPU image runs it, on a machine without a GPU, so that a mistake fails the build instead of a worker.
"""

import sys

from penstock.worker.engine.cuda.requirements import CudaUnavailable
from penstock.worker.engine.cuda.toolchain import check_toolchain

if __name__ == "__main__":
    try:
        check_toolchain()
    except CudaUnavailable as error:
        sys.exit(f"no kernels: {error}")
