"""`penstock scorecard`: runs proofs one after the other, shows their cards and exits with the worst verdict."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.markup import escape

from penstock.bench.tables import new_table
from penstock.chassis.garbage import freeze_gc
from penstock.chassis.grpc_poller import unblocked_poller
from penstock.cli.tables import stderr_console, stdout_console
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.batches.proof import BatchOptions, batch
from penstock.proofs.card import ProofCard, exit_code
from penstock.proofs.engine.options import EngineProofOptions
from penstock.proofs.hostile.proof import HostileOptions, hostile
from penstock.proofs.live.cancel import CancelOptions, cancel
from penstock.proofs.live.clocks import ClocksOptions, clocks
from penstock.proofs.live.database import DatabaseOptions, database
from penstock.proofs.live.disk import DiskOptions, disk
from penstock.proofs.live.drain import DrainOptions, drain
from penstock.proofs.live.freeze import FreezeOptions, freeze
from penstock.proofs.live.kill import KillOptions, kill
from penstock.proofs.live.overhead import OverheadOptions, overhead
from penstock.proofs.live.overload.surge import SurgeOptions, surge
from penstock.proofs.live.partition import PartitionOptions, partition
from penstock.proofs.live.quota import QuotaOptions, quota
from penstock.proofs.live.retrieval import RetrievalOptions, retrieval
from penstock.proofs.live.rollout import RolloutOptions, rollout
from penstock.proofs.live.soak import SoakOptions, soak
from penstock.proofs.regions.options import RegionsOptions
from penstock.proofs.regions.proof import regions
from penstock.proofs.simulated.autoscale import AutoscaleOptions, autoscale
from penstock.proofs.simulated.bursts import BurstsOptions, bursts
from penstock.proofs.simulated.fairness import FairnessOptions, fairness
from penstock.proofs.simulated.fleet import FleetOptions, fleet
from penstock.proofs.simulated.neighbour import NeighbourOptions, neighbour
from penstock.proofs.simulated.overload import OverloadOptions, overload
from penstock.proofs.simulated.prefixes import PrefixesOptions, prefixes
from penstock.proofs.simulated.recovery import RecoveryOptions, recovery
from penstock.proofs.simulated.work_conservation import WorkConservationOptions, work_conservation

Options = TypeVar("Options")

VERDICT_COLORS = {"pass": "green", "miss": "red", "void": "yellow"}


async def scorecard(proofs: Sequence[str], mesh: MeshOptions, *, as_json: bool, **given: Any) -> None:
    """Raises Exit with 1 for a miss, 3 for a void run."""
    freeze_gc()  # so that garbage collection does not disturb measurements
    cards = []
    with unblocked_poller():  # before the channels to processes, which are opened before those of clients
        for proof in proofs:
            card = await _run_proof(proof, mesh, given)
            cards.append(card)
            if not as_json:
                _show_card(card)
    if as_json:
        stdout_console.print_json(data=[card.to_json() for card in cards])
    if code := exit_code(cards):
        raise click.exceptions.Exit(code)


async def _run_proof(proof: str, mesh: MeshOptions, given: dict[str, Any]) -> ProofCard:
    run, options = PROOFS[proof]
    try:
        chosen = _options_for(options, given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return await run(chosen, mesh, stderr_console)


async def _engine(options: EngineProofOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    """Run in a thread, so that Ctrl-C can interrupt it; only the model of `mesh` applies."""
    from penstock.proofs.engine.proof import prove  # loads torch

    return await asyncio.to_thread(prove, options, mesh.model, console)


PROOFS: dict[str, tuple[Callable[..., Awaitable[ProofCard]], type[Any]]] = {
    "kill": (kill, KillOptions),
    "cancel": (cancel, CancelOptions),
    "drain": (drain, DrainOptions),
    "freeze": (freeze, FreezeOptions),
    "partition": (partition, PartitionOptions),
    "disk": (disk, DiskOptions),
    "database": (database, DatabaseOptions),
    "quota": (quota, QuotaOptions),
    "rollout": (rollout, RolloutOptions),
    "retrieval": (retrieval, RetrievalOptions),
    "batch": (batch, BatchOptions),
    "soak": (soak, SoakOptions),
    "surge": (surge, SurgeOptions),
    "clocks": (clocks, ClocksOptions),
    "regions": (regions, RegionsOptions),
    "hostile": (hostile, HostileOptions),
    "overhead": (overhead, OverheadOptions),
    "engine": (_engine, EngineProofOptions),
    "overload": (overload, OverloadOptions),
    "fleet": (fleet, FleetOptions),
    "recovery": (recovery, RecoveryOptions),
    "bursts": (bursts, BurstsOptions),
    "fairness": (fairness, FairnessOptions),
    "neighbour": (neighbour, NeighbourOptions),
    "order": (work_conservation, WorkConservationOptions),
    "prefixes": (prefixes, PrefixesOptions),
    "autoscale": (autoscale, AutoscaleOptions),
}


def _options_for(kind: type[Options], given: dict[str, Any]) -> Options:
    """Return the options of one proof: those of `given` that it has; None means the proof's default."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # each is a dataclass
    return kind(**{name: value for name, value in given.items() if name in known and value is not None})


def _show_card(card: ProofCard) -> None:
    color = VERDICT_COLORS[card.verdict]
    stdout_console.print(f"\n[bold]{card.proof}[/bold]  [{color}]{card.verdict}[/{color}] {escape(card.void_reason)}")
    table = new_table("figure", numbers=("measured", "goal"))
    table.add_column("")
    for line in card.lines:
        mark = "" if not line.goal else "[green]met[/green]" if line.is_met else "[red]missed[/red]"
        table.add_row(line.figure, f"{line.measured:,.5g} {line.unit}".strip(), line.goal, mark)
    stdout_console.print(table)
    for note in card.notes:
        stdout_console.print(f"[dim]{escape(note)}[/dim]")
