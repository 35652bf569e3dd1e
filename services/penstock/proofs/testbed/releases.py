"""A mesh of processes of two releases, as in a rolling update of Penstock itself."""

from dataclasses import replace
from pathlib import Path

from penstock.local_mesh.mesh import TransformPlan
from penstock.local_mesh.plan import MeshPlan, ProcessSpec

# Settings of a plan that the previous release does not know; an unknown setting stops a start.
NEW_SETTINGS = frozenset({"PENSTOCK_ROUTING_AUTHS"})
REPLICATED_TIERS = ("edge", "queue", "scheduler", "worker", "routing")


def run_release(source: Path, spec: ProcessSpec) -> ProcessSpec:
    """Return `spec` with the code below `source`, the folder that has the package `penstock`."""
    known = {name: value for name, value in spec.environment.items() if name not in NEW_SETTINGS}
    return replace(spec, environment={**known, "PYTHONPATH": str(source)})


def mix_releases(source: Path, *, with_auth: bool) -> TransformPlan:
    """Return a change of a plan: every other process of each tier, from the first, runs the release at `source`.

    Auth has one process: two runs, with and without it, have both releases on both sides of every link.
    """

    async def transform(plan: MeshPlan) -> MeshPlan:
        others = {each.name for tier in REPLICATED_TIERS for each in plan.processes_of(tier)[::2]}
        others |= {each.name for each in plan.processes_of("auth") if with_auth}
        processes = tuple(run_release(source, each) if each.name in others else each for each in plan.processes)
        return replace(plan, processes=processes)

    return transform
