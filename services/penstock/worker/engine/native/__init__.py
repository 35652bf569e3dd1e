"""The native forward pass for CPUs: C++ code, compiled for the type of processor at first use, and its bindings."""

from penstock.worker.engine.native.compiler import NativeUnavailable
from penstock.worker.engine.native.runner import NativeRunner, check_native

__all__ = ["NativeRunner", "NativeUnavailable", "check_native"]
