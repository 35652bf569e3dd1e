"""Short prompts beside very long ones: short prompts wait little, and long prompts lose little prefill."""

import asyncio
from dataclasses import dataclass

from rich.console import Console

from penstock.bench.progress import progress_reporter
from penstock.bench.statistics import quantile
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import ProofCard, reported
from penstock.proofs.simulated.scenarios import proof_scenario, worst_at_most
from penstock.simulator.scenario import SimTenant, WorkerKind
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import ArrivalProcess, Poisson, Regular
from penstock.simulator.traffic.demand import Fixed, SampledDemand

LONG_PROMPT_TOKENS, SHORT_PROMPT_TOKENS = 50_000, 64
MAX_P99_TTFT_MS = 150.0  # ms, P99
MAX_TOKEN_GAP_MS = 57.2  # ms; the duration of a step that is all prefill
MAX_PREFILL_LOSS_PERCENT = 5.0  # %
DURATION_S = 120.0  # s


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourOptions:
    seeds: int = 5


async def neighbour(options: NeighbourOptions, _: MeshOptions, console: Console) -> ProofCard:
    return await asyncio.to_thread(prove, options, console)


def prove(options: NeighbourOptions, console: Console) -> ProofCard:
    ttfts, gaps, losses = [], [], []
    with progress_reporter(console) as report_progress:
        undisturbed = _long_prefill_tokens(simulate(0, ("long",)))
        for seed in range(options.seeds):
            report_progress(f"seed {seed} of {options.seeds}")
            both = simulate(seed, ("short", "long"))
            transcripts = [each.transcript for each in both.ledger.requests if each.tenant.name == "short"]
            ttfts.append(1e3 * quantile([each.ttft for each in transcripts if each.ttft is not None], 0.99))
            gaps.append(1e3 * max(gap for each in transcripts for gap in each.token_gaps))
            losses.append(100 - 100 * _long_prefill_tokens(both) / undisturbed)
        alone = [each.transcript.ttft or 0.0 for each in simulate(0, ("short",)).ledger.requests]
    card = ProofCard(proof="neighbour", void_reason=_void_reason(both))
    card.lines += [
        reported("short prompts alone: P99 TTFT", 1e3 * quantile(alone, 0.99), "ms"),
        *worst_at_most("beside two long ones: P99 TTFT", ttfts, MAX_P99_TTFT_MS, "ms"),
        *worst_at_most("beside two long ones: longest time between tokens", gaps, MAX_TOKEN_GAP_MS, "ms"),
        *worst_at_most("prefill that the long ones lose", losses, MAX_PREFILL_LOSS_PERCENT),
    ]
    return card


def simulate(seed: int, tenant_names: tuple[str, ...]) -> Simulation:
    tenants = {
        "short": _tenant("short", Poisson(4.0), SHORT_PROMPT_TOKENS, 32),
        "long": _tenant("long", Regular(0.5), LONG_PROMPT_TOKENS, 32),
    }
    # No TTFT target applies: long prompts arrive faster than they can be served, so that two are always active.
    scenario = proof_scenario(
        "neighbour",
        *(tenants[name] for name in tenant_names),
        policy="fair",
        seed=seed,
        workers=(WorkerKind(),),
        duration=DURATION_S,
        drain=0.0,
    )
    return Simulation(scenario).run()


def _tenant(name: str, arrivals: ArrivalProcess, prompt: int, output: int) -> SimTenant:
    return SimTenant(name=name, demand=SampledDemand(arrivals, Fixed(prompt), Fixed(output)))


def _long_prefill_tokens(run: Simulation) -> int:
    return sum(each.engine_tokens for each in run.ledger.requests if each.tenant.name == "long")


def _void_reason(run: Simulation) -> str:
    served = sum(each.transcript.tokens > 0 for each in run.ledger.requests if each.tenant.name == "long")
    return "" if served > DURATION_S / 10 else f"only {served} long prompts were served"
