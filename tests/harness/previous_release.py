"""The source of the previous release, from the repository's own history."""

import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from paths import REPO

COMMIT = (REPO / "tests" / "data" / "previous_release").read_text().strip()


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", REPO, *arguments], capture_output=True, check=False)


def check_out(folder: Path) -> Path:
    """Write the previous release's source root below `folder`; skip the test where the history is not at hand."""
    archive = git("archive", COMMIT, "services")
    if archive.returncode:
        pytest.skip(f"the commit {COMMIT[:12]} of the previous release is not in this clone; fetch the whole history")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    source = folder / "services"
    command = [sys.executable, "-c", "import penstock; print(penstock.__path__[0])"]
    found = subprocess.run(command, env=environment_of(source), capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()) == source / "penstock"
    return source


def environment_of(source: Path) -> dict[str, str]:
    """The environment in which a Python imports penstock from `source`."""
    return {**os.environ, "PYTHONPATH": str(source)}
