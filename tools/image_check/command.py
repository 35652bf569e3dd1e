"""`tools/check_images`: build the environments, run the images, print the table."""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from image_check.dockerfile import Dockerfile, Image
from image_check.environments import Builder, StepFailedError, bare_variables
from image_check.mesh import HEALTH_WATCH, SETTINGS, Launch, Mesh, running_mesh
from image_check.ops import failed_commands

REPO = Path(__file__).resolve().parents[2]


@dataclass
class Row:
    """An image and what was found of it."""

    image: Image
    packages: Path | None = None  # where its environment is; None: it could not be made
    seconds: float | None = None  # to SERVING
    failure: str = ""

    def line(self) -> str:
        size = f"{_bytes_below(self.packages) / 1e6:,.0f}" if self.packages else "-"
        seconds = "-" if self.seconds is None else f"{self.seconds:.1f}"
        return f"{self.image.name:<12}{size:>8}{seconds:>12}   {'FAIL' if self.failure else 'pass'}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/check_images", description="Check that every image starts.")
    parser.add_argument("--within", type=float, default=10.0, metavar="SECONDS", help="to SERVING (default 10)")
    parser.add_argument(
        "--folder", type=Path, help="a new folder for the environments, kept (default: a temporary one)"
    )
    parser.add_argument("--without", action="append", default=[], metavar="IMAGE", help="an image that is not checked")
    given = parser.parse_args()
    if given.folder:
        given.folder.mkdir(parents=True)
        return _check(given.folder.resolve(), given.within, given.without)
    with tempfile.TemporaryDirectory(prefix="penstock-images-") as folder:
        return _check(Path(folder), given.within, given.without)


def _check(work: Path, within: float, without: Sequence[str]) -> int:
    dockerfile = Dockerfile.read(REPO / "deploy" / "Dockerfile")
    rows = _distinct([each for each in dockerfile.images() if each.name not in without])
    _build(rows, Builder(dockerfile, REPO, work, _say))
    ready = {row.image.name: row for row in rows if row.packages}
    home = work / "home"
    home.mkdir()
    _run(ready, home, within)
    print(f"{'image':<12}{'MB':>8}{'s to serve':>12}")
    for row in rows:
        print(row.line())
    for row in rows:
        if row.failure:
            print(f"\n{row.image.name}: {row.failure}")
    return 1 if any(row.failure for row in rows) else 0


def _distinct(images: list[Image]) -> list[Row]:
    """Images of the same packages and command are one environment and one process: the first stands for all."""
    seen: dict[tuple[str, tuple[str, ...]], str] = {}
    for each in images:
        first = seen.setdefault((each.packages, each.command), each.name)
        if first != each.name:
            _say(f"{each.name} has the packages and the command of {first}, which is checked")
    return [Row(each) for each in images if each.name in seen.values()]


def _build(rows: list[Row], builder: Builder) -> None:
    """Make each environment once; several images may take theirs from one stage."""
    made: dict[str, Path | str] = {}
    for row in rows:
        stage = row.image.packages
        if stage not in made:
            _say(f"making {stage}")
            try:
                made[stage] = builder.build(stage)
            except StepFailedError as error:
                made[stage] = str(error)
        found = made[stage]
        if isinstance(found, Path):
            row.packages = found
        else:
            row.failure = found


def _run(ready: Mapping[str, Row], home: Path, within: float) -> None:
    """Run the tiers as a mesh, and the commands of `ops` against it."""
    tiers = [ready[name] for name in SETTINGS if name in ready]
    if not tiers:
        return
    launches = {row.image.name: _launch(row, home) for row in tiers}
    watch = launches[tiers[0].image.name]
    watch = watch._replace(command=[watch.command[0], str(HEALTH_WATCH)])
    with running_mesh({name: (name, launch, {}) for name, launch in launches.items()}, watch, within) as mesh:
        for row in tiers:
            row.seconds = mesh.seconds.get(row.image.name)
            row.failure = mesh.failures.get(row.image.name, "")
        if "ops" in ready:
            ready["ops"].failure = _failure_of_ops(ready["ops"], mesh, home)


def _failure_of_ops(row: Row, mesh: Mesh, home: Path) -> str:
    if mesh.failures:
        return f"not run: {', '.join(mesh.failures)} did not start"
    launch = _launch(row, home)
    return "\n".join(failed_commands(launch._replace(command=launch.command[:1]), mesh.addresses))


def _launch(row: Row, home: Path) -> Launch:
    """Start an image's command as a container runtime would, with the image's variables."""
    assert row.packages
    programs = row.packages / "bin"
    variables = bare_variables()
    variables |= {"PATH": f"{programs}:{variables.get('PATH', '')}", "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    return Launch([str(programs / row.image.command[0]), *row.image.command[1:]], variables, home)


def _bytes_below(folder: Path) -> int:
    return sum(each.lstat().st_size for each in folder.rglob("*") if not each.is_dir())


def _say(text: str) -> None:
    print(f"check_images: {text}", flush=True)
