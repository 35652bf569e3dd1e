"""One step's tokens, sorted by the edge streams that wait for them. Pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from penstock.worker.engine.interface import StepResult
from penstock.worker.runs.effects import StepTokens
from penstock.worker.runs.run import Run

MAX_STEP_ENDS = 64  # a run that is let go later than that many steps after the word is let go too late in any case


@dataclass(slots=True)
class RunCounters:
    """Since the start of the process."""

    engine_steps: int = 0
    tokens_generated: int = 0
    tokens_wasted_after_cancel: int = 0
    cancels: int = 0
    _step_ends: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_STEP_ENDS))  # Unix s

    def record_step(self, ended_at: float) -> None:
        self.engine_steps += 1
        self._step_ends.append(ended_at)

    def steps_since(self, at: float) -> int:
        """How many ended after `at`, of those remembered."""
        return sum(1 for _ in takewhile(lambda end: end > at, reversed(self._step_ends)))


def record_prefills(result: StepResult, running: Mapping[int, Run], began_at: float) -> None:
    """Note what the step did for runs of which it made no token yet."""
    for seq_id, cached_tokens in result.admitted:
        if seq_id in running:
            running[seq_id].on_admitted(cached_tokens, began_at)
    for seq_id, tokens in result.prefilled:
        if seq_id in running:
            running[seq_id].record_prefill(tokens)


def fan_out_tokens(result: StepResult, running: Mapping[int, Run], counts: RunCounters, now: float) -> list[StepTokens]:
    """Return one `Tokens` per stream; a token that nobody waits for any more is dropped."""
    groups: dict[int, StepTokens] = {}
    columns = zip(result.seq_ids, result.tokens, result.indexes, result.logprobs, strict=True)
    for seq_id, token, index, logprob in columns:
        run = running.get(seq_id)
        if run is None:
            continue
        run.add_token(token, now)
        counts.tokens_generated += 1
        if run.stop_reason or run.is_orphan:
            continue
        group = groups.get(run.stream)
        if group is None:
            group = groups[run.stream] = StepTokens(run.stream, result.step)
        group.add(run, token, index, logprob)
    return list(groups.values())
