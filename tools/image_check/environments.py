"""Makes the environment of a stage as deploy/Dockerfile does, in a folder instead of an image."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from image_check.dockerfile import PACKAGES, Dockerfile, Stage

_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")  # as in Dockerfile.dockerignore
_LIMIT = 1800  # s; for one instruction, the longest of which downloads torch


class StepFailedError(Exception):
    """An instruction failed or cannot be followed; the message has the instruction and the end of its output."""


class Builder:
    """Builds each stage that images take their packages from, from nothing, in a folder of its own below `work`."""

    def __init__(self, dockerfile: Dockerfile, sources: Path, work: Path, say: Callable[[str], None]) -> None:
        self._dockerfile = dockerfile
        self._sources = sources
        self._work = work
        self._say = say

    def build(self, stage: str) -> Path:
        """Return the folder that stands for PACKAGES. Raises StepFailedError."""
        build = _Build(self._sources, self._work / stage, self._say)
        for each in self._dockerfile.lineage(stage):
            build.stage(each)
        return build.packages


class _Build:
    def __init__(self, sources: Path, root: Path, say: Callable[[str], None]) -> None:
        self._sources, self._root, self._say = sources, root, say
        self._folder = root
        self._environment = _bare_environment(root)
        self._lacks = ""  # a program that the stage would have installed with apt, and that this machine has not

    @property
    def packages(self) -> Path:
        return self._inside(PACKAGES)

    def stage(self, stage: Stage) -> None:
        self._lacks = ""
        for instruction in stage.instructions:
            getattr(self, f"_{instruction.name.lower()}", self._skip)(instruction.text)

    def _inside(self, path: str) -> Path:
        return self._root / path.lstrip("/") if path.startswith("/") else self._folder / path

    def _env(self, text: str) -> None:
        for pair in shlex.split(text):
            name, _, value = pair.partition("=")
            expanded = value.replace("$PATH", self._environment["PATH"])
            self._environment[name] = expanded.replace(PACKAGES, str(self.packages))

    def _workdir(self, text: str) -> None:
        self._folder = self._inside(text)
        self._folder.mkdir(parents=True, exist_ok=True)

    def _copy(self, text: str) -> None:
        *names, target = text.split()
        for name in names:
            source, copy = self._sources / name, self._inside(target)
            if source.is_dir():
                shutil.copytree(source, copy, ignore=_LEFT_OUT, dirs_exist_ok=True)
            else:
                is_folder = target.endswith("/")
                (copy if is_folder else copy.parent).mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copy)

    def _run(self, text: str) -> None:
        if text.startswith("apt-get"):
            if not all(each.split()[0] in {"apt-get", "rm"} for each in text.split("&&")):
                raise StepFailedError(f"{text}\ndoes more than apt-get: write a RUN of its own for that")
            self._lacks = next((each for each in _programs(text) if shutil.which(each) is None), "")
        elif self._lacks:
            self._say(f"left out, as there is no {self._lacks} here: {text}")
        else:
            self._shell(text.replace(PACKAGES, str(self.packages)))

    def _shell(self, command: str) -> None:
        self._say(command)
        done = subprocess.run(
            ["/bin/sh", "-ec", command],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_LIMIT,
        )
        if done.returncode:
            raise StepFailedError(f"{command}\n{done.stdout[-4000:]}")

    def _skip(self, text: str) -> None:
        """ARG, USER: nothing to do where no container is."""


def _programs(apt: str) -> list[str]:
    """Those of the packages to install that are named as the program they bring; the others are libraries."""
    words = shlex.split(apt.partition("apt-get install")[2].partition("&&")[0])
    return [each for each in words if not each.startswith("-") and not each.endswith("-dev")]


def _bare_environment(root: Path) -> dict[str, str]:
    """Return `bare_variables` with a `python` first on PATH that is outside of every environment, as an image's is."""
    python = root / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(str(Path(sys.executable).resolve()))} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return {**bare_variables(), "PATH": f"{python.parent}:{os.environ.get('PATH', os.defpath)}"}


def bare_variables() -> dict[str, str]:
    """Return this machine's variables without those that bring in another environment or settings of Penstock's."""
    python = {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"}
    return {
        name: value for name, value in os.environ.items() if name not in python and not name.startswith("PENSTOCK_")
    }
