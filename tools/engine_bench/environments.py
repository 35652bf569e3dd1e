"""Installs each peer into its own environment, because the requirements of peers conflict."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

_INSTALL_TIMEOUT_S = 3600.0  # s, including compilation


class Installable(Protocol):
    """The packages of a peer."""

    @property
    def name(self) -> str: ...
    @property
    def requirements(self) -> Sequence[str]: ...  # empty: it runs in our environment
    @property
    def excluded(self) -> Sequence[str]: ...  # uninstalled after the installation
    @property
    def build_settings(self) -> Mapping[str, str]: ...  # environment of the installation
    @property
    def note(self) -> str: ...  # printed before the installation


class PeerUnavailable(Exception):
    """A peer cannot run here, and the comparison omits it. The message gives the reason."""


def install_environment(peer: Installable, cache: Path, report_progress: Callable[[str], None]) -> Path:
    """Return the folder of the peer's environment, created on first use and after a change of its versions."""
    if not peer.requirements:
        return Path(sys.prefix)
    folder = cache / peer.name
    stamp = folder / "installed.txt"
    requirements = "\n".join([*peer.requirements, *(f"without {name}" for name in peer.excluded), ""])
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != requirements:
        report_progress(f"{peer.name}: installing {', '.join(peer.requirements)} into {folder} ({peer.note})")
        _install(peer, folder)
        stamp.write_text(requirements, encoding="utf-8")
    return folder


def _install(peer: Installable, folder: Path) -> None:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    commands = [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [*pip, "install", *peer.requirements],
        *([[*pip, "uninstall", "--yes", *peer.excluded]] if peer.excluded else []),
    ]
    for command in commands:
        _run(command, {**os.environ, **peer.build_settings}, folder)


def _run(command: list[str], variables: dict[str, str], folder: Path) -> None:
    try:
        subprocess.run(
            command,
            check=True,
            env=variables,
            capture_output=True,
            text=True,
            timeout=_INSTALL_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as timeout:
        raise PeerUnavailable(
            f"installing into {folder} took more than {_INSTALL_TIMEOUT_S:.0f} s; try again"
        ) from timeout
    except subprocess.CalledProcessError as failure:
        errors = [line for line in (failure.stderr + failure.stdout).splitlines() if "error" in line.lower()]
        raise PeerUnavailable(f"installing into {folder} failed: {errors[0] if errors else failure}") from failure
