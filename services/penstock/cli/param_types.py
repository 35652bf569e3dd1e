"""Parameter types that reject invalid values before a process starts or a measurement begins."""

import math
from pathlib import Path
from typing import Any

import click

from penstock.chassis.config import ConfigError
from penstock.local_mesh.plan import DEFAULT_MODEL, check_model

TIERS = ("edge", "auth", "queue", "scheduler", "worker", "routing")
IMAGE_SUFFIXES = (".png", ".svg")
EXAMPLES_FOLDER = Path(__file__).parents[1] / "simulator" / "scenarios"


class ModelFile(click.ParamType[str]):
    """The name of an installed model, or its files.

    The default is not checked here, because commands that start no engine do not need it.
    """

    name = "model"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value != DEFAULT_MODEL:
            try:
                check_model(value)
            except ConfigError as error:
                self.fail(str(error), param, ctx)
        return value


class ScenarioFile(click.Path):
    """A scenario file, or the name of an example."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        example = (EXAMPLES_FOLDER / Path(value).name).with_suffix(".toml")
        if Path(value).exists() or Path(value).parent != Path():
            return super().convert(value, param, ctx)
        if not example.exists():
            names = ", ".join(sorted(path.stem for path in EXAMPLES_FOLDER.glob("*.toml")))
            self.fail(f"{value} is neither a file nor an example; the examples are {names}", param, ctx)
        return example


class OutputFile(click.Path):
    """A file to write, in an existing folder; with one of `suffixes`, if there are any."""

    def __init__(self, *suffixes: str) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)
        self.suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(value)
        if self.suffixes and path.suffix.lower() not in self.suffixes:
            self.fail(f"{path} must end in {' or '.join(self.suffixes)}", param, ctx)
        if not path.absolute().parent.is_dir():
            self.fail(f"the folder {path.parent} does not exist", param, ctx)
        return super().convert(value, param, ctx)


class FiniteFloat(click.FloatRange):
    """A range that rejects NaN, which `click.FloatRange` accepts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Setting(click.ParamType[str]):
    """A setting of one tier; the tier checks its value."""

    name = "setting"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name, equals, _ = value.partition("=")
        tiers = tuple(f"PENSTOCK_{tier.upper()}_" for tier in TIERS)
        if not equals or not name.startswith(tiers):
            self.fail(
                f"{value!r} is not PENSTOCK_<TIER>_<NAME>=VALUE with a tier of {', '.join(TIERS)}; put settings of "
                "all tiers, such as PENSTOCK_LOG_LEVEL, into the environment",
                param,
                ctx,
            )
        return value
