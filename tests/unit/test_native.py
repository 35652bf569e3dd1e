"""The native forward pass: the logits of plain torch, and bits that do not depend on the other rows."""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paths import REPO
from penstock.worker.engine.native import NativeRunner, NativeUnavailable, check_native, compiler
from penstock.worker.engine.torch.engine import TorchRunner
from penstock.worker.engine.torch.model import Model
from random_models import KV_BLOCKS, SHAPE, logits_of, random_text, random_weights

SHAPES = {
    "plain": SHAPE,
    "heads of 48, all alike": replace(SHAPE, dim=96, heads=2, kv_heads=2, head_size=48),
    "heads of 80, three to one": replace(SHAPE, dim=240, heads=3, kv_heads=1, head_size=80),
    "sizes that need padding": replace(SHAPE, dim=80, hidden=172, vocab_size=301),
    "forty heads to one": replace(SHAPE, heads=40, kv_heads=1),
}


HAS_BFLOAT16 = "avx512_bf16" in compiler.host_target().required_flags
DTYPES = [torch.float32, torch.bfloat16] if HAS_BFLOAT16 else [torch.float32]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.02}


def runners(shape, dtype, *, block_size=16, threads=2, **weights):
    torch_runner = TorchRunner(Model(shape, random_weights(shape, dtype, **weights)), KV_BLOCKS, block_size)
    return torch_runner, NativeRunner(shape, random_weights(shape, dtype, **weights), KV_BLOCKS, block_size, threads)


@pytest.mark.parametrize("extras", [False, True], ids=["llama", "qwen"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_float32_logits_equal_those_of_plain_torch(shape, extras):
    texts = [
        random_text(3),
        random_text(40, 2),
        random_text(600, 3),
        random_text(880, 4),
    ]  # a layer processes so many rows in parts
    plain, native = (logits_of(each, texts, budget=2_048) for each in runners(shape, torch.float32, extras=extras))
    assert plain.keys() == native.keys()
    for place, row in plain.items():
        torch.testing.assert_close(native[place], row, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_are_as_close_to_float32_as_those_of_plain_torch(shape, dtype):
    texts = [random_text(300)]
    exact = logits_of(runners(shape, torch.float32)[0], texts)
    plain, native = (logits_of(each, texts) for each in runners(shape, dtype))

    def error(logits):
        return max(float((logits[place] - exact[place]).norm() / exact[place].norm()) for place in exact)

    assert error(native) < max(1.5 * error(plain), TOLERANCE[dtype])


def test_a_tied_head_is_the_embedding():
    texts = [random_text(20)]
    plain, native = (logits_of(each, texts) for each in runners(SHAPE, torch.float32, tied=True))
    for place, row in plain.items():
        torch.testing.assert_close(native[place], row, rtol=1e-3, atol=2e-3)


@cache
def logits_alone(dtype):
    """The logits of the text that the next test runs beside others."""
    return logits_of(runners(SHAPE, dtype)[1], [random_text(330)], prompt_share=0.9)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=10, deadline=None)
@given(
    mates=st.lists(st.integers(1, 400), max_size=7),
    budget=st.integers(8, 512) | st.just(2_048),  # the large budget makes steps that a layer processes in parts
    prompt_share=st.floats(0.5, 1.0),  # the rest is decoded, one step for each token
    block_size=st.sampled_from([16, 32, 64]),
    threads=st.integers(1, 3),
)
def test_a_rows_bits_do_not_depend_on_the_other_rows(*, dtype, mates, budget, prompt_share, block_size, threads):
    text = random_text(330)
    alone = logits_alone(dtype)
    runner = runners(SHAPE, dtype, block_size=block_size, threads=threads)[1]
    texts = [*(random_text(length, seed) for seed, length in enumerate(mates, 10)), text]
    options = {"budget": budget, "block_size": block_size, "prompt_share": prompt_share}
    batched = logits_of(runner, texts, **options)
    shared = [place for place in alone if (len(mates), place[1]) in batched]
    assert shared
    for place in shared:
        assert torch.equal(alone[place], batched[len(mates), place[1]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_found_prefix_gives_the_bits_of_a_computed_one(dtype):
    text = random_text(200)
    runner = runners(SHAPE, dtype)[1]
    alone = logits_of(runner, [text])
    twice = logits_of(runner, [text, text[:150], text], salt=b"tenant")
    for (_, at), row in alone.items():
        assert torch.equal(row, twice[0, at])
        assert torch.equal(row, twice[2, at])


def test_bfloat16_is_native_where_the_processor_has_it():
    assert check_native(SHAPE, 16) == HAS_BFLOAT16


def test_unsupported_shapes_are_rejected():
    for shape, block_size in ((replace(SHAPE, head_size=8), 16), (replace(SHAPE, dim=40), 16), (SHAPE, 4)):
        with pytest.raises(NativeUnavailable, match="not a multiple of 16"):
            check_native(shape, block_size)


# Compilation.


@pytest.fixture
def quick_compiler(tmp_path):
    """The compiler without optimization, which takes seconds instead of ten."""
    script = tmp_path / "compiler"
    script.write_text(f'#!/bin/sh\nexec {shutil.which("g++") or shutil.which("clang++")} "$@" -O0\n')
    script.chmod(0o755)
    return script


def test_processes_that_compile_at_the_same_time_end_with_one_library(tmp_path, quick_compiler):
    code = "from penstock.worker.engine.native.compiler import load_library; print(load_library()._name)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CXX": str(quick_compiler)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=REPO, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    names = {process.communicate(timeout=200)[0].strip().splitlines()[-1] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert names == {str(path) for path in (tmp_path / "penstock" / "native").iterdir()}
    assert len(names) == 1


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler.load_library.cache_clear()
    yield tmp_path
    compiler.load_library.cache_clear()


def test_without_a_compiler_the_error_names_the_package_to_install(empty_cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NativeUnavailable, match=r"no C\+\+ compiler is installed; install g\+\+"):
        compiler.load_library()


def test_a_compiler_that_fails_is_quoted_and_leaves_no_file(empty_cache, monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / "broken"
        broken.write_text("#!/bin/sh\necho cannot compile this >&2\nexit 1\n")
        broken.chmod(0o755)
        monkeypatch.setenv("CXX", str(broken))
        with pytest.raises(NativeUnavailable, match="cannot compile this"):
            compiler.load_library()
    assert list((empty_cache / "penstock" / "native").iterdir()) == []


def test_a_cache_that_cannot_be_written_names_the_remedy(empty_cache, monkeypatch):
    (empty_cache / "penstock").write_text("a file where a folder is to be")
    with pytest.raises(NativeUnavailable, match="set XDG_CACHE_HOME"):
        compiler.load_library()


def test_every_target_requires_at_least_the_features_of_the_next():
    assert all(
        worse.required_flags < better.required_flags or not worse.required_flags
        for better, worse in pairwise(compiler.X86_TARGETS[:3])
    )
    assert compiler.X86_TARGETS[-1].required_flags == frozenset()
    names = {compiler.library_name(target) for target in compiler.X86_TARGETS}
    assert len(names) == len(compiler.X86_TARGETS)
