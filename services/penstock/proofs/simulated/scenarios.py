"""Scenarios of the proofs under virtual time: workers of the reference model, and their load. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from penstock.proofs.card import CardLine, at_least, at_most, reported
from penstock.simulator.scenario import ClientBehavior, QueueSettings, Scenario, SimTenant, WorkerKind
from penstock.simulator.traffic.arrivals import ArrivalProcess, Bursty, Poisson
from penstock.simulator.traffic.demand import LogNormal, SampledDemand

PROMPT = LogNormal(mean=400.0, sigma=0.7, low=1, high=8192)
OUTPUT = LogNormal(mean=120.0, sigma=0.7, low=1, high=8192)
FIFO_CAPACITY_RPS = 16.0  # requests/s that FIFO can serve, about

# As many slots as can decode beside full prefill chunks. With more slots, requests would wait in the engine, which
# cannot reject them.
WORKER = WorkerKind(slots=64)
IMPATIENT_CLIENTS = ClientBehavior(patience=5.0)


def chat_tenant(
    arrivals: ArrivalProcess, name: str = "chat", client: ClientBehavior = IMPATIENT_CLIENTS, **fields: Any
) -> SimTenant:
    return SimTenant(name=name, demand=SampledDemand(arrivals, PROMPT, OUTPUT), client=client, **fields)


def arrivals_for_seed(seed: int, rate: float = FIFO_CAPACITY_RPS) -> ArrivalProcess:
    """Return Poisson arrivals for even seeds; for odd seeds bursts whose pauses a queue can bridge within the SLO."""
    return Bursty(rate, mean_on_s=0.5, mean_off_s=0.25) if seed % 2 else Poisson(rate)


def queue_settings(policy: str, **fields: Any) -> QueueSettings:
    return QueueSettings(policy=policy, **fields)


def proof_scenario(name: str, *tenants: SimTenant, policy: str = "penstock", seed: int = 0, **fields: Any) -> Scenario:
    settings: dict[str, Any] = {
        "workers": (WORKER,),
        "queues": queue_settings(policy),
        "drain": 30.0,
        "sample_every": 1.0,
    }
    settings |= fields
    return Scenario(name=name, tenants=tenants, seed=seed, **settings)


def worst_at_least(figure: str, values: Sequence[float], bound: float, unit: str = "%") -> list[CardLine]:
    """The worst seed is judged; the median is reported."""
    return [reported(f"{figure}, median", median(values), unit), at_least(f"{figure}, worst", min(values), bound, unit)]


def worst_at_most(figure: str, values: Sequence[float], bound: float, unit: str = "%") -> list[CardLine]:
    return [reported(f"{figure}, median", median(values), unit), at_most(f"{figure}, worst", max(values), bound, unit)]
