"""The runs of each edge stream, and the distribution of a step's results to streams, runs and counters. Pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import repeat, takewhile

from penstock.worker.engine.interface import StepResult
from penstock.worker.runs.effects import StepTokens
from penstock.worker.runs.run import Run


@dataclass(slots=True)
class EdgeStreams:
    """Open edge streams. A handle names at most one run of its stream at a time."""

    _runs: dict[int, dict[int, Run]] = field(default_factory=dict)  # by stream, then by handle

    def __len__(self) -> int:
        return len(self._runs)

    def open(self, stream: int) -> None:
        self._runs[stream] = {}

    def close(self, stream: int) -> None:
        del self._runs[stream]

    def runs_of(self, stream: int) -> list[Run]:
        return list(self._runs[stream].values())

    def find(self, stream: int, handle: int) -> Run | None:
        return self._runs[stream].get(handle)

    def add(self, run: Run) -> None:
        self._runs[run.stream][run.handle] = run

    def discard(self, run: Run) -> None:
        """Free the run's handle, unless the stream is closed or the handle names another run by now."""
        handles = self._runs.get(run.stream, {})
        if handles.get(run.handle) is run:
            del handles[run.handle]


MAX_STEP_ENDS = 64  # step ends kept to count the steps between a cancel and its effect; a larger count is a defect


@dataclass(slots=True)
class RunCounters:
    """Totals since the start of the process."""

    engine_steps: int = 0
    tokens_prefilled: int = 0  # computed by steps; without those that decodes computed or the prefix cache had
    tokens_generated: int = 0
    tokens_wasted_after_cancel: int = 0
    tokens_admitted: int = 0  # prompt tokens of runs that the batch has admitted
    tokens_cached: int = 0  # of these, found in the prefix cache
    preemptions: int = 0
    cancels: int = 0
    _step_ends: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_STEP_ENDS))  # s of the worker's clock

    def record_step(self, result: StepResult, ended_at: float) -> None:
        self.engine_steps += 1
        self.tokens_prefilled += result.prefill_tokens
        self.preemptions += len(result.preempted)
        self._step_ends.append(ended_at)

    def steps_since(self, at: float) -> int:
        """Number of steps that ended after `at`, `MAX_STEP_ENDS` at most."""
        return sum(1 for _ in takewhile(lambda end: end > at, reversed(self._step_ends)))


def record_prefills(result: StepResult, running: Mapping[int, Run], counts: RunCounters, began_at: float) -> None:
    """Record admissions and computed prompt tokens of a step."""
    for seq_id, cached_tokens in result.admitted:
        if run := running.get(seq_id):
            run.on_admitted(cached_tokens, began_at)
            counts.tokens_admitted += len(run.spec.token_ids)
            counts.tokens_cached += cached_tokens
    for seq_id, tokens in result.prefilled:
        if seq_id in running:
            running[seq_id].record_prefill(tokens)


def fan_out_tokens(result: StepResult, running: Mapping[int, Run], counts: RunCounters, now: float) -> list[StepTokens]:
    """Return one `StepTokens` per edge stream and number of likeliest tokens.

    Tokens of runs that are stopping or orphaned are dropped.
    """
    groups: dict[int | tuple[int, int], StepTokens] = {}  # by stream, and by the number of likeliest tokens if any
    count = len(result.tokens)
    likeliest = map(result.likeliest.get, range(count)) if result.likeliest else repeat(None, count)
    columns = zip(result.seq_ids, result.tokens, result.indexes, result.logprobs, likeliest, strict=True)
    for seq_id, token, index, logprob, top in columns:
        run = running.get(seq_id)
        if run is None:
            continue
        run.add_token(token, now)
        counts.tokens_generated += 1
        if run.stop_reason or run.is_orphan:
            continue
        key = (run.stream, len(top.token_ids)) if top else run.stream
        group = groups.get(key)
        if group is None:
            group = groups[key] = StepTokens(run.stream, result.step)
        group.add(run, token, index, logprob)
        if top:
            group.top_token_ids += top.token_ids
            group.top_logprobs += top.logprobs
    return list(groups.values())
