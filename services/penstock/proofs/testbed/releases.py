"""A mesh of processes of two releases, as in a rolling update of Penstock itself."""

import functools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from penstock.chassis.config import ConfigError
from penstock.local_mesh.launch import TransformPlan
from penstock.local_mesh.plan import MeshPlan, ProcessSpec

REPLICATED_TIERS = ("edge", "queue", "scheduler", "worker", "routing")


def run_release(source: Path, spec: ProcessSpec) -> ProcessSpec:
    """Return `spec` with the code below `source`, the folder that has the package `penstock`.

    Settings of the tier that the other release does not have are left out. One without an operators' listener serves
    Admin on its main port. Raises ConfigError if the release does not start.
    """
    prefix, known = f"PENSTOCK_{spec.tier.upper()}_", settings_of_release(source, spec.tier)
    environment = {
        name: value for name, value in spec.environment.items() if not name.startswith(prefix) or name in known
    }
    return replace(
        spec,
        environment={**environment, "PYTHONPATH": str(source)},
        admin_target=spec.admin_target if f"{prefix}ADMIN_LISTEN" in known else "",
    )


@functools.cache
def settings_of_release(source: Path, tier: str) -> frozenset[str]:
    """Return the variables that `tier` reads in the release at `source`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-m", f"penstock.{tier}", "--print-config"],
        env={**environment, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError(f"the release at {source} does not run {tier}:\n{done.stderr[-2000:]}")
    return frozenset(line.partition("=")[0] for line in done.stdout.splitlines())


def accept_former_edges(spec: ProcessSpec) -> ProcessSpec:
    """Return `spec`; an auth process records what edges without grants admitted while it was unreachable."""
    if spec.tier != "auth":
        return spec
    return replace(spec, environment={**spec.environment, "PENSTOCK_AUTH_ACCEPT_UNGRANTED_FALLBACK": "true"})


def mix_releases(source: Path, *, with_auth: bool) -> TransformPlan:
    """Return a change of a plan: every other process of each tier, from the first, runs the release at `source`.

    Auth has one process: two runs, with and without it, have both releases on both sides of every link.
    """

    async def transform(plan: MeshPlan) -> MeshPlan:
        others = {each.name for tier in REPLICATED_TIERS for each in plan.processes_of(tier)[::2]}
        others |= {each.name for each in plan.processes_of("auth") if with_auth}
        processes = tuple(
            run_release(source, each) if each.name in others else accept_former_edges(each) for each in plan.processes
        )
        return replace(plan, processes=processes)

    return transform
