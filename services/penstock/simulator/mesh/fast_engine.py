"""Fast engine model: the steps of the exact engine without work per token; a decoding run costs nothing until it ends.

It counts runs instead of visiting them, because placed runs are never preempted: the scheduler promises each run the
KV blocks it can grow to, which `add` asserts. Steps that only decode and cause no report are one event. A test compares
it with the exact engine, step by step.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from penstock.mesh.prefill_rank import BATCH_RANK
from penstock.simulator.mesh.engine import NO_STEP, DecodeForecast, EngineOccupancy, SimRun, SimStepResult
from penstock.simulator.scenario import WorkerKind
from penstock.worker.engine.batching.policy import Yielding
from penstock.worker.engine.simulated.step_time import StepWork, prefill_reads
from penstock.worker.scheduler_session.load_report import MAX_STEPS_BETWEEN_REPORTS, LoadReport, has_changed
from penstock.worker.scheduler_session.throughput import EWMA_KEPT_SHARE, EngineThroughput


@dataclass(slots=True)
class FastForward:
    """Consecutive steps that only decode the same sequences. The fields cover all of the steps."""

    decode_seqs: int  # of each step
    durations: Sequence[float]  # s
    ends_at: Sequence[float]  # s
    steps_ended: int = 0  # the next one is the current step

    @property
    def is_in_last_step(self) -> bool:
        return self.steps_ended + 1 == len(self.ends_at)

    def newly_ended(self, now: float) -> int:
        """Return how many more steps have ended by now, except the last one, which has an event of its own."""
        return bisect_right(self.ends_at, now, self.steps_ended, len(self.ends_at) - 1) - self.steps_ended

    def current_step(self) -> "FastForward":
        """Return a fast forward of the current step alone."""
        current = slice(self.steps_ended, self.steps_ended + 1)
        return FastForward(self.decode_seqs, self.durations[current], self.ends_at[current])


class ForecastingThroughput(EngineThroughput):
    """Engine throughput that predicts after how many decode steps a report is due."""

    __slots__ = ()

    def steps_until_report(self, last: LoadReport) -> int:
        """Return the steps until a report is due because of their number alone."""
        return last.steps + MAX_STEPS_BETWEEN_REPORTS - self.steps

    def fast_forward(
        self, decode_seqs: int, durations: Sequence[float], last: LoadReport, starts_at: float, progress_due_at: float
    ) -> FastForward:
        """Return the steps up to the first one that ends after `progress_due_at` or changes the report `last`."""
        ends = list[float]()
        step_time, tokens = self.step_time or 0.0, self._tokens_per_step
        reported_time, reported_rate = last.step_time or 0.0, last.tokens_per_second
        for duration in durations:
            starts_at += duration
            ends.append(starts_at)
            step_time = EWMA_KEPT_SHARE * step_time + (1 - EWMA_KEPT_SHARE) * duration
            tokens = EWMA_KEPT_SHARE * tokens + (1 - EWMA_KEPT_SHARE) * decode_seqs
            if (
                starts_at >= progress_due_at
                or has_changed(step_time, reported_time)
                or has_changed(tokens / step_time, reported_rate)
            ):
                break
        return FastForward(decode_seqs, durations[: len(ends)], ends)


class FastEngine:
    """Runs wait, then prefill, then decode. Decoding runs are a count and the steps at which they end."""

    def __init__(self, kind: WorkerKind) -> None:
        self._kind = kind
        self._step_count = 0
        self._yielding = Yielding()
        self._waiting: deque[SimRun] = deque()
        self._prefilling: list[SimRun] = []  # oldest first
        self._decoding: dict[int, SimRun] = {}
        self._context_tokens = 0  # of all decoding runs
        self._ending_runs: dict[int, list[SimRun]] = {}  # by step
        self._end_steps: list[int] = []  # heap of those steps; may hold steps that have ended
        self._cancelling: list[SimRun] = []
        self._promised_blocks = 0  # that all runs can grow to
        self._running_promised_blocks = 0  # that all runs except the waiting ones can grow to

    @property
    def has_work(self) -> bool:
        return bool(self._decoding or self._prefilling or self._waiting or self._cancelling)

    def fits(self, run: SimRun) -> bool:
        """Whether the blocks that a run can grow to are free."""
        return self._promised_blocks + self._blocks_for(run.prompt_tokens + run.max_output_tokens) <= (
            self._kind.kv_blocks
        )

    def add(self, run: SimRun) -> None:
        self._promised_blocks += self._blocks_for(run.prompt_tokens + run.max_output_tokens)
        freed = sum(self._blocks_for(each.prompt_tokens + each.max_output_tokens) for each in self._cancelling)
        text = "a scheduler never promises more blocks than the pool has, without those of runs that it has ended"
        assert self._promised_blocks - freed <= self._kind.kv_blocks, text
        self._waiting.append(run)
        self._yielding.on_added(run.prefill_rank, self._step_count)

    def cancel(self, run: SimRun) -> None:
        if run.last_token_step == NO_STEP and run not in self._cancelling:
            self._cancelling.append(run)

    def occupancy(self) -> EngineOccupancy:
        running, free = len(self._decoding), max(0, self._kind.kv_blocks - self._promised_blocks)
        if not self._waiting and not self._prefilling:
            return EngineOccupancy(running, free, 0)
        runs = [*self._waiting, *self._prefilling]
        backlog = [run.prompt_tokens - run.prefilled_tokens for run in runs if run.prefill_rank < BATCH_RANK]
        return EngineOccupancy(len(runs) + running, free, sum([tokens for tokens in backlog if tokens > 1]))

    def step(self) -> SimStepResult:
        self._step_count += 1
        cancelled = self._release_cancelled() if self._cancelling else []
        # The batch treats a prompt with one token left as a decode, unless the run is admitted in this step.
        one_token_left = [run for run in self._prefilling if run.prompt_tokens - run.prefilled_tokens == 1]
        decodes, context = (
            len(self._decoding) + len(one_token_left),
            self._context_tokens + sum(run.prompt_tokens for run in one_token_left),
        )
        if self._waiting:
            self._admit()
        prefill, reads = self._prefill(one_token_left, decodes) if self._prefilling else (0, 0)
        self._context_tokens += len(self._decoding)
        finished = self._ending_runs.pop(self._step_count, [])
        for run in finished:
            self._end_run(run)
        if self._prefilling:
            finished = [*finished, *self._begin_decodes()]
        work = StepWork(prefill, decodes, context, reads)
        duration = self._kind.step_time.duration_s(work) if decodes or prefill else 0.0
        return SimStepResult(duration, prefill, decodes, finished, cancelled)

    def forecast_decodes(self, max_steps: int) -> DecodeForecast:
        if self._waiting or self._prefilling or self._cancelling or not self._decoding:
            return DecodeForecast()
        while self._end_steps[0] <= self._step_count:
            heappop(self._end_steps)
        count, decodes = min(max_steps, self._end_steps[0] - self._step_count - 1), len(self._decoding)
        model = self._kind.step_time
        if not model.per_context_token_s:
            return DecodeForecast(decodes, [model.duration_s(StepWork(0, decodes, 0, 0))] * count)
        contexts = range(self._context_tokens, self._context_tokens + count * decodes, decodes)
        return DecodeForecast(decodes, [model.duration_s(StepWork(0, decodes, context, 0)) for context in contexts])

    def skip(self, steps: int) -> None:
        self._step_count += steps
        self._context_tokens += steps * len(self._decoding)

    def _release_cancelled(self) -> list[SimRun]:
        cancelled, self._cancelling = [run for run in self._cancelling if run.last_token_step == NO_STEP], []
        for run in cancelled:
            self._promised_blocks -= self._blocks_for(run.prompt_tokens + run.max_output_tokens)
            if run in self._waiting:
                self._waiting.remove(run)
                continue
            self._running_promised_blocks -= self._blocks_for(run.prompt_tokens + run.max_output_tokens)
            if run.run_id in self._decoding:
                self._ending_runs[run.first_token_step + run.output_tokens].remove(run)
                run.last_token_step = self._step_count - 2
                self._remove_decoding(run, run.prompt_tokens + run.generated_tokens)
            else:
                self._prefilling.remove(run)
        return cancelled

    def _admit(self) -> None:
        """Admit the oldest runs while slots and blocks are free, as the batch does."""
        running = len(self._decoding) + len(self._prefilling)
        while self._waiting and running < self._kind.slots:
            run = self._waiting[0]
            # One block per running run stays free. The sum of promised blocks is an upper bound of the held blocks,
            # and is checked first, because counting the held blocks is slow.
            free = self._kind.kv_blocks - self._blocks_for(run.prompt_tokens) - running
            if free < self._running_promised_blocks and free < self._held_blocks():
                return
            self._prefilling.append(self._waiting.popleft())
            self._running_promised_blocks += self._blocks_for(run.prompt_tokens + run.max_output_tokens)
            running += 1

    def _held_blocks(self) -> int:
        decoding = (
            self._blocks_for(run.prompt_tokens + self._step_count - 1 - run.first_token_step)
            for run in self._decoding.values()
        )
        return sum(decoding) + sum(self._blocks_for(run.prompt_tokens) for run in self._prefilling)

    def _prefill(self, one_token_left: Iterable[SimRun], decodes: int) -> tuple[int, int]:
        """Spend the token budget of the step; return the prefilled tokens and the positions that they read."""
        long = [run for run in self._prefilling if run not in one_token_left] if one_token_left else self._prefilling
        remaining = [run.prompt_tokens - run.prefilled_tokens for run in long]
        ranks, yields = [run.prefill_rank for run in long], self._yielding.is_due(self._step_count)
        chunks = self._kind.batching.split_prefill(remaining, decodes, ranks, yields=yields)
        reads = 0
        for run, chunk in zip(long, chunks, strict=True):
            reads += prefill_reads(run.prefilled_tokens, chunk)
            run.prefilled_tokens += chunk
        for run in one_token_left:
            run.prefilled_tokens += 1
        return sum(chunks), reads

    def _begin_decodes(self) -> list[SimRun]:
        """Emit the first token of each run whose prompt is computed; return the runs that end with it."""
        done = [run for run in self._prefilling if run.prefilled_tokens == run.prompt_tokens]
        if not done:
            return []
        self._prefilling = [run for run in self._prefilling if run.prefilled_tokens < run.prompt_tokens]
        for run in done:
            run.first_token_step = self._step_count - 1
            self._decoding[run.run_id] = run
            self._context_tokens += run.prompt_tokens + 1
            if run.output_tokens > 1:
                self._schedule_end(run, self._step_count + run.output_tokens - 1)
        ended = [run for run in done if run.output_tokens == 1]
        for run in ended:
            self._end_run(run)
        return ended

    def _schedule_end(self, run: SimRun, step: int) -> None:
        if step not in self._ending_runs:
            self._ending_runs[step] = []
            heappush(self._end_steps, step)
        self._ending_runs[step].append(run)

    def _end_run(self, run: SimRun) -> None:
        run.last_token_step = self._step_count - 1
        blocks = self._blocks_for(run.prompt_tokens + run.max_output_tokens)
        self._promised_blocks -= blocks
        self._running_promised_blocks -= blocks
        self._remove_decoding(run, run.prompt_tokens + run.output_tokens)

    def _remove_decoding(self, run: SimRun, context_tokens: int) -> None:
        del self._decoding[run.run_id]
        self._context_tokens -= context_tokens

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._kind.block_size)
