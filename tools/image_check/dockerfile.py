"""What deploy/Dockerfile says: its stages, their instructions, and the images that it makes. Runs nothing."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PACKAGES = "/opt/penstock"  # the environment that an image takes over from the stage that installed it
_KNOWN = frozenset({"FROM", "ARG", "ENV", "WORKDIR", "USER", "COPY", "RUN", "CMD"})


class DockerfileError(Exception):
    """The Dockerfile has something that the checks do not understand, so they would not check what is built."""


class Instruction(NamedTuple):
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    base: str  # another stage, or an image from a registry
    instructions: tuple[Instruction, ...]

    def texts(self, name: str) -> list[str]:
        return [each.text for each in self.instructions if each.name == name]


@dataclass(frozen=True, slots=True)
class Image:
    """A stage with a command."""

    name: str
    packages: str  # the stage that its environment is copied from
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    stages: dict[str, Stage]

    @classmethod
    def read(cls, path: Path) -> "Dockerfile":
        """Raises DockerfileError."""
        stages: dict[str, Stage] = {}
        for name, text in _instructions(path.read_text(encoding="utf-8")):
            if name not in _KNOWN:
                raise DockerfileError(f"{path}: tools/image_check does not know {name}; teach it, or do without")
            if name == "FROM":
                base, _, stage = text.partition(" AS ")
                stages[stage] = Stage(stage, base, ())
            else:
                stage = next(reversed(stages))
                last = stages[stage]
                stages[stage] = Stage(stage, last.base, (*last.instructions, Instruction(name, text)))
        return cls(stages)

    def images(self) -> list[Image]:
        return [self._image(stage) for stage in self.stages.values() if stage.texts("CMD")]

    def lineage(self, name: str) -> list[Stage]:
        """The stages that `name` is made of, the first one first."""
        stage = self.stages[name]
        return [*(self.lineage(stage.base) if stage.base in self.stages else []), stage]

    def _image(self, stage: Stage) -> Image:
        copied = [words for words in map(str.split, stage.texts("COPY")) if words[1:] == [PACKAGES, PACKAGES]]
        if len(copied) != 1:
            raise DockerfileError(f"image {stage.name} does not copy {PACKAGES} from one stage")
        return Image(stage.name, copied[0][0].removeprefix("--from="), tuple(json.loads(stage.texts("CMD")[-1])))


def _instructions(text: str) -> Iterator[Instruction]:
    """Instructions with their continuation lines joined; comments are dropped, within an instruction too."""
    joined = ""
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        joined += line.removesuffix("\\")
        if not line.endswith("\\"):
            name, _, rest = joined.partition(" ")
            yield Instruction(name.upper(), rest.strip())
            joined = ""
