"""The CPU's own forward: C++ that is compiled for this very processor when it is first needed, and its bindings."""

from penstock.worker.engine.native.compiler import NativeUnavailable
from penstock.worker.engine.native.runner import NativeRunner, check_native

__all__ = ["NativeRunner", "NativeUnavailable", "check_native"]
