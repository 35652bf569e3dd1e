"""The environment of each client: a virtual environment, and a folder of npm packages for a client of Node.js."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from client_trials.clients import SCRIPTS, Client
from engine_bench.environments import PeerUnavailable, install_environment

_NPM_TIMEOUT_S = 900.0
_TOOLS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start the script of a client."""

    command: Sequence[str]
    settings: dict[str, str] = field(default_factory=dict)


def prepare(client: Client, cache: Path, report_progress: Callable[[str], None]) -> Launch:
    """Install a client on first use. Raises PeerUnavailable."""
    folder = cache / "clients"
    folder.mkdir(parents=True, exist_ok=True)
    if client.npm_packages:
        return _prepare_node(client, folder, report_progress)
    environment = install_environment(client, folder, report_progress)
    programs = environment / "bin"
    command = [str(programs / "python"), "-P", "-m", f"client_trials.scripts.{Path(client.script).stem}"]
    return Launch(command, {"PYTHONPATH": str(_TOOLS), "PYTHONDONTWRITEBYTECODE": "1"})


def _prepare_node(client: Client, folder: Path, report_progress: Callable[[str], None]) -> Launch:
    if node := shutil.which("node"):
        programs = Path(node).parent
    else:
        programs = install_environment(client, folder, report_progress) / "bin"
    packages = folder / f"{client.name}-packages"
    stamp = packages / "installed.txt"
    wanted = "\n".join([*client.npm_packages, ""])
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        report_progress(f"{client.name}: installing {', '.join(client.npm_packages)} into {packages}")
        _install_npm(client, programs, packages)
        stamp.write_text(wanted, encoding="utf-8")
    command = [str(programs / "node"), str(SCRIPTS / client.script)]
    return Launch(command, {"NODE_PATH": str(packages / "node_modules")})


def _install_npm(client: Client, programs: Path, packages: Path) -> None:
    packages.mkdir(exist_ok=True)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(packages)]
    try:
        subprocess.run(
            [str(programs / "npm"), "install", *options, *client.npm_packages],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            timeout=_NPM_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as failure:
        raise PeerUnavailable(f"installing into {packages} failed: {failure}") from failure
