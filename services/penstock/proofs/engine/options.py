"""`penstock scorecard engine` as it is asked for. Loads no torch: whoever asks for another proof needs none."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import Card


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProofOptions:
    seed: int = 0
    requests: int = 192  # of mixed lengths
    crowd: int = 10_000  # requests through the batch alone
    real_crowd: int = 256  # and through the engine
    plot: Path | None = None


async def engine(asked: EngineProofOptions, mesh: MeshOptions, console: Console) -> Card:
    """Of `mesh` the model counts alone. Off the event loop, which stays free to be interrupted."""
    from penstock.proofs.engine.proof import prove

    return await asyncio.to_thread(prove, asked, mesh.model, console)
