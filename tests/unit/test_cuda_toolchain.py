"""The build of a GPU image fails if the image could not compile kernels."""

import shutil

import pytest
import torch

from penstock.worker.engine.cuda import toolchain
from penstock.worker.engine.cuda.requirements import CudaUnavailable
from penstock.worker.engine.cuda.toolchain import check_toolchain, compile_bindings

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc here")
BINDINGS = """
#include <Python.h>
#include <stdlib.h>
#include "cuda.h"
int devices(void) { return Py_IsInitialized() ? cuDeviceGetCount() : CUDA_VERSION; }
"""


@pytest.fixture
def triton(tmp_path):
    """A folder as Triton's, with the two files that are compiled; the driver's library is missing."""
    nvidia = tmp_path / "backends" / "nvidia"
    (nvidia / "include").mkdir(parents=True)
    (nvidia / "driver.c").write_text(BINDINGS, encoding="utf-8")
    (nvidia / "include" / "cuda.h").write_text("#define CUDA_VERSION 12080\nint cuDeviceGetCount(void);\n")
    return tmp_path


@needs_gcc
def test_bindings_compile_without_the_drivers_library(triton, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    compile_bindings(triton)


@needs_gcc
def test_a_missing_header_is_named(triton, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    (triton / "backends" / "nvidia" / "include" / "cuda.h").unlink()
    with pytest.raises(CudaUnavailable, match=r"cuda\.h"):
        compile_bindings(triton)


def test_a_missing_compiler_is_named(triton, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CudaUnavailable, match=r"no-such-compiler cannot be run.*install gcc or set CC"):
        compile_bindings(triton)


def test_a_build_of_torch_without_cuda_is_rejected(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(CudaUnavailable, match="build without CUDA"):
        check_toolchain()


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None)
    with pytest.raises(CudaUnavailable, match="Triton is not installed"):
        check_toolchain()
