"""The step time model: the duration of an engine's step as a linear function of its work, and its file format."""

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol


class PositionSpan(Protocol):
    """Consecutive positions of one sequence that a step computes; `Slice` is one."""

    start: int
    count: int


class StepWork(NamedTuple):
    """The work of a step."""

    prefill_tokens: int
    decode_seqs: int
    context_tokens: int  # positions that decodes read
    prefill_context_tokens: int  # positions that prefilled tokens read: each reads its own and all before it


def work_of(decodes: Iterable[PositionSpan], prefills: Iterable[PositionSpan]) -> StepWork:
    ends = [part.start + part.count for part in decodes]
    tokens = reads = 0
    for part in prefills:
        tokens += part.count
        reads += prefill_reads(part.start, part.count)
    return StepWork(tokens, len(ends), sum(ends), reads)


def prefill_reads(start: int, count: int) -> int:
    """Positions read by `count` prefilled tokens from `start`."""
    return count * start + count * (count + 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """Time of a step, linear in its work. The defaults are those of a mid-size GPU."""

    base_s: float = 0.006
    per_prefill_token_s: float = 0.0001
    per_decode_seq_s: float = 0.00005
    per_context_token_s: float = 0.0  # per position that a decode reads
    per_prefill_context_token_s: float = 0.0  # per position that a prefilled token reads

    def duration_s(self, work: StepWork) -> float:
        return (
            self.base_s
            + self.per_prefill_token_s * work.prefill_tokens
            + self.per_decode_seq_s * work.decode_seqs
            + self.per_context_token_s * work.context_tokens
            + self.per_prefill_context_token_s * work.prefill_context_tokens
        )


FIELD_BY_KEY = {
    "base_ms": "base_s",
    "prefill_token_ms": "per_prefill_token_s",
    "decode_seq_ms": "per_decode_seq_s",
    "context_token_ms": "per_context_token_s",
    "prefill_context_token_ms": "per_prefill_context_token_s",
}
SECONDS_PER_MS = 1e-3
TABLE = "step_time"  # of the TOML file

MeasurementFacts = Mapping[str, str | float]


def step_time_toml(model: StepTimeModel, facts: MeasurementFacts) -> str:
    """Return the text of a step time file. `facts` describe the measurement, for human readers alone."""
    terms = (f"{name} = {getattr(model, field) / SECONDS_PER_MS:.6g}" for name, field in FIELD_BY_KEY.items())
    measured = (f"{name} = {json.dumps(value)}" for name, value in facts.items())
    return "\n".join([f"[{TABLE}]", *terms, "", "[measured]", *measured, ""])


def read_step_time_model(path: Path) -> StepTimeModel:
    """Read a step time file; an absent term is 0. Raises ValueError that names the wrong field."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8")).get(TABLE)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a step time file: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(  # noqa: TRY004  # the file is wrong, not the caller
            f"{path} has no [{TABLE}] table; `penstock simulate --calibrate --out {path}` writes one"
        )
    if unknown := next((name for name in values if name not in FIELD_BY_KEY), None):
        raise ValueError(f"{path}: {TABLE}.{unknown} is unknown; known are {', '.join(FIELD_BY_KEY)}")
    model = StepTimeModel(
        **{field: _seconds(path, name, values.get(name, 0.0)) for name, field in FIELD_BY_KEY.items()}
    )
    if not model.base_s:
        raise ValueError(f"{path}: {TABLE}.base_ms must be above 0, or empty steps would take no time")
    return model


def _seconds(path: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{path}: {TABLE}.{name} must be a number of ms, 0 or more, not {value!r}")
    return value * SECONDS_PER_MS
