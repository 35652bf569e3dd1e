"""Hides all installed packages except those that the file $ONLY_INSTALLED names, from this process and its children.

The folder is on PYTHONPATH, because Python imports `sitecustomize` before every other module.
"""

import json
import os
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

SITE = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
INSTALLED = json.loads(Path(os.environ["ONLY_INSTALLED"]).read_text(encoding="utf-8"))
FILES, DISTRIBUTIONS = frozenset(INSTALLED["files"]), frozenset(INSTALLED["distributions"])


class OnlyInstalled(PathFinder):
    """Finds modules and distributions as if the others were not installed.

    A namespace package has no file of its own, so that each module in it is found or not by itself.
    """

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        spec = PathFinder.find_spec(fullname, path, target)
        is_hidden = spec and spec.origin and spec.origin.startswith(SITE) and spec.origin not in FILES
        return None if is_hidden else spec

    @staticmethod
    def find_distributions(*context):
        return (each for each in PathFinder.find_distributions(*context) if canonical(each.name) in DISTRIBUTIONS)


def canonical(name):
    return name.lower().replace("_", "-").replace(".", "-")


sys.meta_path[sys.meta_path.index(PathFinder)] = OnlyInstalled
