"""What tests/conftest.py adds to a test run: a test that crashes or hangs is one failure, and the others run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
RUN_TIMEOUT_S = 60.0  # the defect that is excluded is a run without an end
PASSES = "def test_passes():\n    pass\n"
CRASHES = "import os, signal\n\ndef test_crashes():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
HANGS = """
import asyncio, pathlib

async def test_hangs():
    try:
        await asyncio.Event().wait()
    finally:
        pathlib.Path("cleaned").touch()

async def test_passes():
    await asyncio.sleep(0)
"""


def run_tests(folder, processes, **files):
    """Run files of tests with our conftest; return the result in words, such as "1 failed, 3 passed"."""
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", processes, "--dist", "loadfile")
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S)
    found = re.search(r"=+ (.*) in [\d.]+s", run.stdout.splitlines()[-1])
    assert found, run.stdout + run.stderr
    return found[1]


@pytest.fixture
def folder(tmp_path):
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    return tmp_path


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("last", [CRASHES, CRASHES + PASSES, PASSES + CRASHES], ids=["alone", "first", "last"])
def test_a_crash_in_the_last_file_of_a_run_is_one_failure(folder, processes, last):
    passed = 1 + last.count("test_passes")
    assert run_tests(folder, processes, a=PASSES, b=last) == f"1 failed, {passed} passed"


def test_a_coroutine_that_hangs_is_ended_with_its_clean_up(folder):
    conftest = folder / "conftest.py"
    bounded, found = re.subn(r"TIMEOUT_S = [\d.]+", "TIMEOUT_S = 0.2", conftest.read_text())
    assert found == 1
    conftest.write_text(bounded)
    assert run_tests(folder, "1", a=HANGS) == "1 failed, 1 passed"
    assert (folder / "cleaned").exists()
