"""Rows of a ledger as text for COPY: a month of requests of many tenants, keys and models."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.auth.store.totals import DAY_S
from penstock.mesh.partitions import partition_of

BLOCK_ROWS = 2_000
OUTCOMES = ("stop",) * 55 + ("length",) * 25 + ("cancelled",) * 16 + ("failed",) * 2 + ("shed", "lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPlan:
    """How many rows, and of how many tenants, keys and models. Each tenant has as many keys as the others."""

    rows: int
    days: int = 30
    tenants: int = 200
    keys: int = 400
    models: int = 6
    seed: int = 0

    def tenant(self, key: int) -> str:
        return f"tenant-{key % self.tenants:04}"


def day_blocks(plan: LedgerPlan, day: int, start: float) -> Iterator[str]:
    """Yield the rows of one day in the order of their reservations, in the order of the ledger's columns."""
    first, end = plan.rows * day // plan.days, plan.rows * (day + 1) // plan.days
    rng = random.Random(f"{plan.seed} {day}")  # not for a secret
    step = DAY_S / max(1, end - first)
    callers = [
        (f"{plan.tenant(key)}\tkey{key:05}", f"model-{model}", partition_of(plan.tenant(key)))
        for key in range(plan.keys)
        for model in range(plan.models)
    ]
    for block in range(first, end, BLOCK_ROWS):
        numbers = range(block, min(block + BLOCK_ROWS, end))
        chosen = rng.choices(callers, k=len(numbers))
        at = start + (block - first) * step
        yield "".join(_row(number, at + place * step, *chosen[place]) for place, number in enumerate(numbers))


def _row(number: int, at: float, caller: str, model: str, partition: int) -> str:
    outcome = OUTCOMES[number * 7 % 100]
    prompt, output = (0, 0) if outcome == "lost" else (64 + number % 960, number % 256)
    name = f"{number:032x}"
    return (
        f"{int(at * 1_000):012x}{number:020x}\t{name}\t{caller}\tedge-{number % 4}\t{model}\t1024\t256\t{at:.6f}"
        f"\t{at + 9e4:.6f}\t{at + 1 + number % 7:.6f}\t{prompt}\t{output}\t{outcome}\t{name}\t0\t\\\\x{name}\t{output}"
        f"\t{prompt // 2}\t{prompt * 50 + output * 200}\tworker-{number % 8}\tnorth\t2\tf\t{partition}\n"
    )
