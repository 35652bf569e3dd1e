"""Worlds of the proofs under virtual time: workers of the reference model, and who asks them for what. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from penstock.proofs.card import Line, at_least, at_most, told
from penstock.simulator.scenario import Client, Queues, Scenario, Tenant, WorkerKind
from penstock.simulator.traffic.arrivals import Arrivals, Bursty, Poisson
from penstock.simulator.traffic.demand import Drawn
from penstock.simulator.traffic.lengths import LogNormal

PROMPT = LogNormal(mean=400.0, sigma=0.7, low=1, high=8192)
OUTPUT = LogNormal(mean=120.0, sigma=0.7, low=1, high=8192)
RATE = 16.0  # requests/s; about what FIFO can serve of them

# As many as the law can decode beside full prefill chunks: with more, the line is in the engine, where none is refused.
WORKER = WorkerKind(slots=64)
IMPATIENT = Client(patience=5.0)


def chat(arrivals: Arrivals, name: str = "chat", client: Client = IMPATIENT, **fields: Any) -> Tenant:
    return Tenant(name=name, demand=Drawn(arrivals, PROMPT, OUTPUT), client=client, **fields)


def arrivals(seed: int, rate: float = RATE) -> Arrivals:
    """Poisson for even seeds, bursts for odd ones: silences that a line within the SLO can bridge."""
    return Bursty(rate, on=0.5, off=0.25) if seed % 2 else Poisson(rate)


def queues(policy: str, **fields: Any) -> Queues:
    return Queues(policy=policy, **fields)


def world(name: str, *tenants: Tenant, policy: str = "penstock", seed: int = 0, **fields: Any) -> Scenario:
    given: dict[str, Any] = {"workers": (WORKER,), "queues": queues(policy), "drain": 30.0, "sample_every": 1.0}
    given |= fields
    return Scenario(name=name, tenants=tenants, seed=seed, **given)


def least(figure: str, values: Sequence[float], bound: float, unit: str = "%") -> list[Line]:
    """The worst seed is judged; the median is told."""
    return [told(f"{figure}, median", median(values), unit), at_least(f"{figure}, worst", min(values), bound, unit)]


def most(figure: str, values: Sequence[float], bound: float, unit: str = "%") -> list[Line]:
    return [told(f"{figure}, median", median(values), unit), at_most(f"{figure}, worst", max(values), bound, unit)]
