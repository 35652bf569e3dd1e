"""`tools/check_manifests`: render overlays and print their faults."""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from manifest_check.objects import Manifests, Object
from manifest_check.references import needed_secrets
from manifest_check.rules import manifest_faults


class RenderError(Exception):
    """kustomize cannot render the overlay; the message is its own."""


def kubectl() -> str:
    """Return the program of the environment, or of PATH."""
    beside = Path(sys.executable).with_name("kubectl")
    return str(beside) if beside.exists() else shutil.which("kubectl") or "kubectl"


def render(folder: Path) -> list[Object]:
    """Return the objects of an overlay. Raises RenderError."""
    done = subprocess.run([kubectl(), "kustomize", folder], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RenderError(done.stderr.strip())
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/check_manifests", description="Check kustomize overlays.")
    parser.add_argument("overlays", nargs="+", type=Path, metavar="OVERLAY")
    total = 0
    for overlay in parser.parse_args().overlays:
        try:
            objects = render(overlay)
            faults = manifest_faults(objects)
        except RenderError as error:
            objects, faults = [], [str(error)]
        print(f"{overlay}: {len(objects)} objects, {len(faults)} faults")
        print("".join(f"  {text}\n" for text in faults), end="")
        if objects and not faults and (secrets := needed_secrets(Manifests(objects))):
            print(f"  needs the Secrets {', '.join(secrets)}, which it does not make")
        total += len(faults)
    return 1 if total else 0
