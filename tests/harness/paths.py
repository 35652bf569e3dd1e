"""Where tests find things that are not part of the product."""

import os
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def shared_data() -> Path:
    """Folder of real traces and the small trained model; skips the test, saying so, where it is not at hand."""
    folder = Path(os.environ.get("PENSTOCK_TEST_DATA", REPO.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}; set PENSTOCK_TEST_DATA to the folder that holds traces/ and models/")
    return folder
