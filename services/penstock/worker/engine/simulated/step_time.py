"""How long an engine's step takes, as a law over the work that is in it."""

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol


class PositionSpan(Protocol):
    """A run of one sequence's positions that a step computes; `Slice` is one."""

    start: int
    count: int


class StepWork(NamedTuple):
    """What a step's time follows from."""

    prefill_tokens: int
    decode_seqs: int
    context_tokens: int  # positions that decodes read
    prefill_context_tokens: int  # positions that prefilled tokens read, each token counting its own and all before it


def work_of(decodes: Iterable[PositionSpan], prefills: Iterable[PositionSpan]) -> StepWork:
    ends = [part.start + part.count for part in decodes]
    tokens = reads = 0
    for part in prefills:
        tokens += part.count
        reads += prefill_reads(part.start, part.count)
    return StepWork(tokens, len(ends), sum(ends), reads)


def prefill_reads(start: int, count: int) -> int:
    """Positions read by `count` tokens from `start` on."""
    return count * start + count * (count + 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """Time of a step, linear in its work. The defaults are one mid-size GPU's."""

    base_s: float = 0.006
    per_prefill_token_s: float = 0.0001
    per_decode_seq_s: float = 0.00005
    per_context_token_s: float = 0.0  # for each position that a decode reads
    per_prefill_context_token_s: float = 0.0  # for each that a prefilled token reads

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
