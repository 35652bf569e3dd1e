"""The options of `penstock scorecard engine`. Separate from the proof, so that other proofs do not load torch."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProofOptions:
    seed: int = 0
    requests: int = 192  # of mixed lengths
    stress_requests: int = 10_000  # through the batch alone
    real_stress_requests: int = 256  # through the engine
    plot: Path | None = None
