"""What `penstock scorecard engine` is asked for. Loads no torch: whoever asks for another proof needs none."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProofOptions:
    seed: int = 0
    requests: int = 192  # of mixed lengths
    crowd: int = 10_000  # requests through the batch alone
    real_crowd: int = 256  # and through the engine
    plot: Path | None = None
