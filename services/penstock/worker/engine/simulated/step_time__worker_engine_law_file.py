"""A step-time law as a TOML file: a `[step_law]` table in ms, as scenarios have it, and how it was measured."""

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path

from penstock.worker.engine.simulated.step_time__worker_engine_step_law import StepTimeModel

FIELD_BY_KEY = {
    "base_ms": "base_s",
    "prefill_token_ms": "per_prefill_token_s",
    "decode_seq_ms": "per_decode_seq_s",
    "context_token_ms": "per_context_token_s",
    "prefill_context_token_ms": "per_prefill_context_token_s",
}
SECONDS_PER_MS = 1e-3

MeasurementFacts = Mapping[str, str | float]


def step_time_toml(model: StepTimeModel, facts: MeasurementFacts) -> str:
    """The file's text. `facts` say how the law was measured; nobody reads them but people."""
    terms = (f"{name} = {getattr(model, field) / SECONDS_PER_MS:.6g}" for name, field in FIELD_BY_KEY.items())
    told = (f"{name} = {json.dumps(value)}" for name, value in facts.items())
    return "\n".join(["[step_law]", *terms, "", "[measured]", *told, ""])


def read_step_time_model(path: Path) -> StepTimeModel:
    """Raises ValueError that names the field to mend; a term that is not there costs nothing."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8")).get("step_law")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a law: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(  # noqa: TRY004  # a file is wrong, no caller is
            f"{path} has no [step_law] table; `penstock simulate --calibrate --out {path}` writes one"
        )
    if unknown := next((name for name in values if name not in FIELD_BY_KEY), None):
        raise ValueError(f"{path}: step_law.{unknown} is unknown; known are {', '.join(FIELD_BY_KEY)}")
    law = StepTimeModel(**{field: _seconds(path, name, values.get(name, 0.0)) for name, field in FIELD_BY_KEY.items()})
    if not law.base_s:
        raise ValueError(f"{path}: step_law.base_ms must be above 0, or empty steps would take no time")
    return law


def _seconds(path: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{path}: step_law.{name} must be a number of ms from 0 up, not {value!r}")
    return value * SECONDS_PER_MS
