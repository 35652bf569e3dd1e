"""Cells of the fleet proof: sizes of a mesh, its shards, tenants and prompts, and the scenario of each. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.proofs.simulated.scenarios import (
    FIFO_CAPACITY_RPS,
    IMPATIENT_CLIENTS,
    OUTPUT,
    PROMPT,
    WORKER,
    arrivals_for_seed,
    proof_scenario,
    queue_settings,
)
from penstock.simulator.scenario import Scenario, SimTenant, SloTargets
from penstock.simulator.traffic.demand import LogNormal, SampledDemand

JUDGED_REQUESTS = 3_000.0  # requests after the warm-up at load 1
JUDGED_S_BOUNDS = 4.0, 72.0
LARGE_FLEET = 64  # workers; the least of a fleet that is simulated with half of the seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptKind:
    """Prompts of one kind of traffic, and what one worker serves of it."""

    lengths: LogNormal
    fifo_capacity_rps: float  # requests/s that FIFO serves at one worker, about
    ttft_target: float = 1.0  # s
    warm_up: float = 8.0  # s


CHAT, SHORT, LONG = "chat", "short prompts", "long prompts"
PROMPT_KINDS: Mapping[str, PromptKind] = {
    CHAT: PromptKind(lengths=PROMPT, fifo_capacity_rps=FIFO_CAPACITY_RPS),
    SHORT: PromptKind(lengths=LogNormal(mean=50.0, sigma=0.7, low=1, high=8192), fifo_capacity_rps=46.0, warm_up=5.0),
    # One such prompt takes about 0.5 s alone, and the longest take several times as long.
    LONG: PromptKind(
        lengths=LogNormal(mean=4_000.0, sigma=0.7, low=1, high=32_768),
        fifo_capacity_rps=2.0,
        ttft_target=4.0,
        warm_up=16.0,
    ),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One size of the mesh. The tenants have equal weights and equal loads."""

    workers: int
    shards: int = 1
    tenants: int = 1
    prompts: str = CHAT

    @property
    def label(self) -> str:
        kind = "" if self.prompts == CHAT else f", {self.prompts}"
        return f"{self.workers} workers, {self.shards} shards, {self.tenants} tenants{kind}"

    @property
    def kind(self) -> PromptKind:
        return PROMPT_KINDS[self.prompts]

    @property
    def capacity_rps(self) -> float:
        return self.workers * self.kind.fifo_capacity_rps

    @property
    def judged_s(self) -> float:
        low, high = JUDGED_S_BOUNDS
        return max(low, min(high, JUDGED_REQUESTS / self.capacity_rps))

    def seeds(self, seeds: int) -> range:
        """Return the seeds of this cell if other cells have `seeds`."""
        return range(max(1, seeds // 2)) if self.workers >= LARGE_FLEET else range(seeds)


CELLS = (
    Cell(1),
    Cell(4),
    Cell(8),
    Cell(8, tenants=8),
    Cell(8, shards=4, tenants=8),
    Cell(16, shards=8, tenants=16),
    Cell(32),
    Cell(128, shards=8, tenants=16),
    Cell(4, shards=2, tenants=4, prompts=SHORT),
    Cell(8, shards=2, tenants=4, prompts=SHORT),
    Cell(4, tenants=2, prompts=LONG),
    Cell(8, tenants=4, prompts=LONG),
    Cell(8, shards=2, tenants=4, prompts=LONG),
    Cell(32, shards=4, tenants=8, prompts=LONG),
)


def fleet_scenario(cell: Cell, seed: int, load: float) -> Scenario:
    """Return a scenario whose load 1 is what FIFO serves with as many workers."""
    kind = cell.kind
    arrivals = arrivals_for_seed(seed, cell.capacity_rps / cell.tenants)
    demand = SampledDemand(arrivals, kind.lengths, OUTPUT)
    client = replace(IMPATIENT_CLIENTS, patience=IMPATIENT_CLIENTS.patience * kind.ttft_target)
    return proof_scenario(
        "fleet",
        *(SimTenant(name=f"tenant-{number}", demand=demand, client=client) for number in range(cell.tenants)),
        seed=seed,
        load=load,
        duration=kind.warm_up + cell.judged_s,
        warm_up=kind.warm_up,
        workers=(replace(WORKER, count=cell.workers),),
        queues=queue_settings("penstock", shards=cell.shards),
        targets=SloTargets(ttft=kind.ttft_target, tbt=SloTargets().tbt),
    )


def bounded_fifo_scenario(cell: Cell, seed: int, load: float, bound_s: float) -> Scenario:
    """Return the same load at one FIFO that holds as many tickets as FIFO serves in `bound_s`."""
    bound = max(1, round(bound_s * cell.capacity_rps))
    return replace(fleet_scenario(cell, seed, load), queues=queue_settings("bounded_fifo", max_depth=bound))
