"""The native forward pass for CPUs: C++ code, compiled for the type of processor at first use, and its bindings.

The folder has about a dozen entries: `forward.cpp` with a header for each part of the pass, and the Python modules
that compile, load and call it. They stay together, because the headers are compiled as one file.
"""

from penstock.worker.engine.native.compiler import NativeUnavailable
from penstock.worker.engine.native.runner import NativeRunner, check_native

__all__ = ["NativeRunner", "NativeUnavailable", "check_native"]
