import os
import subprocess
import sys

from paths import REPO

MOST_SHARED = 99 * 1024  # bytes a block may have on the smallest GPUs that are served, of compute capability 8.6


def test_kernels_compile_for_a_gpu_and_multiply_on_its_tensor_cores(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", str(REPO / "tests" / "harness" / "compile_kernels.py")]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 10
    assert all(int(cubin) > 0 and int(shared) <= MOST_SHARED for _, cubin, _, shared in lines)
    assert {name for name, _, multiplies, _ in lines if multiplies == "True"} == {"decode_kernel", "prefill_kernel"}
