"""What an image has installed, by pyproject.toml and deploy/Dockerfile, shown to processes of this environment.

A process that is started with `variables_of` an image finds no file of any other package that is installed here.
"""

import json
import os
import runpy
import shlex
import sys
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

from image_check.dockerfile import Dockerfile
from image_check.mesh import HEALTH_WATCH, SETTINGS, Launch, running_mesh
from paths import REPO

IMPORT_FILTER = REPO / "tests" / "harness" / "import_filter"
MODULES = {".py", ".so"}

# By name of the process: its tier, and its settings beyond those of every mesh.
PROCESSES = {
    **{tier: (tier, {}) for tier in SETTINGS},
    "worker": ("worker", {"THREADS": "1"}),
    "worker-sim": ("worker", {"THREADS": "1", "ENGINE": "sim"}),
}

closure = runpy.run_path(str(REPO / "tools" / "lock"))["closure"]


@cache
def dockerfile():
    return Dockerfile.read(REPO / "deploy" / "Dockerfile")


def installed_in(image):
    """Names of the packages that the Dockerfile has pip install for `image`, their requirements included."""
    texts = [text for stage in dockerfile().lineage(image.packages) for text in stage.texts("RUN")]
    return closure(root for text in texts if text.startswith("pip install") for root in _roots(text))


def _roots(command):
    """`pip install --constraint FILE .[edge]` names penstock[edge]."""
    words = shlex.split(command)[2:]
    del words[words.index("--constraint") + 1]
    return [f"penstock{word[1:]}" if word.startswith(".") else word for word in words if not word.startswith("-")]


def variables_of(image, folder, environment=os.environ):
    """Variables with which Python sees what `image` has; writes the list of its files into `folder`."""
    names = installed_in(image)
    found = [distribution(name) for name in names]
    files = [str(Path(each.locate_file(file))) for each in found for file in each.files if file.suffix in MODULES]
    list_file = folder / f"{image.name}.json"
    list_file.write_text(json.dumps({"files": files, "distributions": sorted({*names, "penstock"})}), encoding="utf-8")
    kept = {name: value for name, value in environment.items() if not name.startswith("PENSTOCK_")}
    path = os.pathsep.join(map(str, (IMPORT_FILTER, REPO / "services")))  # of this checkout, wherever it is installed
    state = str(folder / "state")  # not the state of a mesh that a person runs here
    return {**kept, "PENSTOCK_STATE": state, "PYTHONPATH": path, "ONLY_INSTALLED": str(list_file)}


def launch(image, folder):
    """The image's command, by this Python."""
    (found,) = [each for each in dockerfile().images() if each.name == image]
    program, *arguments = found.command
    start = [sys.executable] if program == "python" else [sys.executable, "-m", "penstock.cli"]
    return Launch([*start, *arguments], variables_of(found, folder), folder)


def image_processes(folder, within_s):
    """A mesh of the images of all tiers, as a context manager; each serves within `within_s` or has failed."""
    processes = {name: (tier, launch(tier, folder), settings) for name, (tier, settings) in PROCESSES.items()}
    watch = launch("auth", folder)._replace(command=[sys.executable, str(HEALTH_WATCH)])
    return running_mesh(processes, watch, within_s)
