"""An installed package has every data file that the code reads in a checkout."""

import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import PurePath

from paths import REPO

CODE_SUFFIXES = (".py", ".pyi")  # setuptools adds these itself
PICTURE_SUFFIXES = (".png",)  # only linked from the README


def test_every_data_file_in_the_packages_is_packaged():
    pyproject = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    globs = pyproject["tool"]["setuptools"]["package-data"]["*"]
    command = ["git", "ls-files", "services/penstock"]
    tracked = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout.split()
    files = [PurePath(each) for each in tracked if PurePath(each).suffix not in (*CODE_SUFFIXES, *PICTURE_SUFFIXES)]
    assert len(files) >= 10
    assert [str(each) for each in files if not any(fnmatch(within_package(each), glob) for glob in globs)] == []


def within_package(file):
    """Return its path from the innermost package that has it, as package-data's globs are read."""
    package = next(each for each in file.parents if (REPO / each / "__init__.py").exists() or each.name == "penstock")
    return str(file.relative_to(package))
