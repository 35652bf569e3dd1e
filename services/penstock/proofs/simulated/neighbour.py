"""Short prompts beside very long ones: who asks for little waits for little, and who asks for much loses little."""

import asyncio
from dataclasses import dataclass

from rich.console import Console

from penstock.bench.progress import saying
from penstock.bench.report import quantile
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import Card, percentile, told
from penstock.proofs.simulated.scenarios import most, world
from penstock.simulator.scenario import Tenant, WorkerKind
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Arrivals, Poisson, Regular
from penstock.simulator.traffic.demand import Drawn
from penstock.simulator.traffic.lengths import Fixed

LONG, SHORT = 50_000, 64  # tokens
TTFT = 150.0  # ms, P99
STEP = 57.2  # ms; of a step that is all prefill, which no token may wait for longer than
LOSS = 5.0  # %
DURATION = 120.0  # s


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourOptions:
    seeds: int = 5


async def neighbour(asked: NeighbourOptions, _: MeshOptions, console: Console) -> Card:
    return await asyncio.to_thread(prove, asked, console)


def prove(asked: NeighbourOptions, console: Console) -> Card:
    firsts, gaps, losses, alone = [], [], [], []
    with saying(console) as say:
        undisturbed = _prefilled(seen(0, ("long",)))
        for seed in range(asked.seeds):
            say(f"seed {seed} of {asked.seeds}")
            both = seen(seed, ("short", "long"))
            histories = [each.history for each in both.ledger.requests if each.tenant.name == "short"]
            firsts.append(1e3 * quantile([each.ttft for each in histories if each.ttft is not None], 0.99))
            gaps.append(1e3 * max(gap for each in histories for gap in each.gaps))
            losses.append(100 - 100 * _prefilled(both) / undisturbed)
        lonely = seen(0, ("short",)).ledger.requests
        alone = [each.history.ttft or 0.0 for each in lonely]
    card = Card(proof="neighbour", void=_void(both))
    card.lines += [
        told("short prompts alone: P99 to the first token", 1e3 * percentile(alone, 0.99), "ms"),
        *most("beside two long ones: P99 to the first token", firsts, TTFT, "ms"),
        *most("beside two long ones: longest time between tokens", gaps, STEP, "ms"),
        *most("prefill that the long ones lose", losses, LOSS),
    ]
    return card


def seen(seed: int, names: tuple[str, ...]) -> Simulation:
    tenants = {
        "short": _tenant("short", Poisson(4.0), SHORT, 32),
        "long": _tenant("long", Regular(0.5), LONG, 32),
    }
    asking = [tenants[name] for name in names]
    # No promise is made: the long ones come faster than they can be served, so that two are always there.
    asked = world("neighbour", *asking, policy="fair", seed=seed, workers=(WorkerKind(),), duration=DURATION, drain=0.0)
    return Simulation(asked).run()


def _tenant(name: str, arrivals: Arrivals, prompt: int, output: int) -> Tenant:
    return Tenant(name=name, demand=Drawn(arrivals, Fixed(prompt), Fixed(output)))


def _prefilled(run: Simulation) -> int:
    return sum(each.engine_tokens for each in run.ledger.requests if each.tenant.name == "long")


def _void(run: Simulation) -> str:
    served = sum(each.history.tokens > 0 for each in run.ledger.requests if each.tenant.name == "long")
    return "" if served > DURATION / 10 else f"only {served} long prompts were served"
