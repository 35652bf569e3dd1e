"""Hides every installed file that is not named in the file of `ONLY_INSTALLED`, from this process and its children.

A folder of its own on PYTHONPATH, as Python imports `sitecustomize` before anything else.
"""

import json
import os
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

_SITE = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})


class OnlyInstalled(PathFinder):
    """Finds modules and distributions as if the others were not installed.

    A namespace package has no file of its own: its modules are judged one by one.
    """

    files: frozenset[str]  # absolute paths
    distributions: frozenset[str]  # normalized names

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        spec = PathFinder.find_spec(fullname, path, target)
        origin = spec.origin if spec else None
        return None if origin and origin.startswith(_SITE) and origin not in cls.files else spec

    @classmethod
    def find_distributions(cls, *arguments):
        found = PathFinder.find_distributions(*arguments)
        return (each for each in found if each._normalized_name in cls.distributions)


told = json.loads(Path(os.environ["ONLY_INSTALLED"]).read_text(encoding="utf-8"))
OnlyInstalled.files, OnlyInstalled.distributions = frozenset(told["files"]), frozenset(told["distributions"])
sys.meta_path[sys.meta_path.index(PathFinder)] = OnlyInstalled
