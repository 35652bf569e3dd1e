"""Engine model of the simulator: its interface, and the exact model, which runs the worker's own batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from penstock.mesh.prefill_rank import DEFAULT_RANK
from penstock.simulator.scenario import WorkerKind
from penstock.simulator.traffic.shared_prefixes import NO_PREFIX, SharedPrefix
from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.sequence import StepPlan
from penstock.worker.engine.interface import SequenceSpec, StepResult
from penstock.worker.engine.simulated.step_time import work_of

NO_STEP = -1
NO_CACHE_CHANGES: Mapping[bytes, bool] = MappingProxyType({})
WORD_ID, STOP_ID = 0, 1  # token ids of a simulated answer: the last token is a stop id


@dataclass(slots=True, eq=False)
class SimRun:
    """One sequence in an engine. It emits one token in each step from its first to its last one, because a placed run
    has all KV blocks it may need and is never preempted.
    """

    run_id: int
    tenant: str
    prompt_tokens: int
    output_tokens: int  # tokens that it will generate
    max_output_tokens: int  # tokens that it may generate, for which KV blocks are promised
    prompt_content: "PromptContent | None" = None  # None: its blocks are not cached for other prompts
    prefill_rank: int = DEFAULT_RANK
    prefilled_tokens: int = 0  # positions of the prompt that were computed
    cached_tokens: int = 0  # positions of the prompt that were cached
    first_token_step: int = NO_STEP  # from 0
    last_token_step: int = NO_STEP  # from 0; set when the run has ended

    @property
    def generated_tokens(self) -> int:
        return (
            0
            if NO_STEP in (self.first_token_step, self.last_token_step)
            else self.last_token_step - self.first_token_step + 1
        )


@dataclass(frozen=True, slots=True)
class PromptContent:
    """The content of a run's prompt, for an engine with a prefix cache."""

    request_number: int
    salt: bytes
    prefix: SharedPrefix = NO_PREFIX
    emitted_tokens: int = 0  # tokens at the end of the prompt, from an earlier run of the answer

    def token_ids(self, prompt_tokens: int) -> list[int]:
        return [
            *self.prefix.token_ids(prompt_tokens - self.emitted_tokens, self.request_number),
            *[WORD_ID] * self.emitted_tokens,
        ]


class SimStepResult(NamedTuple):
    """The result of one step."""

    duration: float  # s; 0 if there was nothing to compute
    prefill_tokens: int
    decode_seqs: int
    finished: Sequence[SimRun]
    cancelled: Sequence[SimRun]
    cache_changes: Mapping[bytes, bool] = NO_CACHE_CHANGES  # block name -> whether the block is cached now


class DecodeForecast(NamedTuple):
    """Steps that can be simulated in advance."""

    decode_seqs: int = 0  # of each step
    durations: Sequence[float] = ()  # s


class EngineOccupancy(NamedTuple):
    """The occupancy of an engine, as a worker reports it."""

    running: int  # runs, including waiting ones
    free_kv_blocks: int  # neither used nor promised
    prefill_backlog_tokens: int


class EngineModel(Protocol):
    """An engine that computes which runs a step has and how long it takes."""

    def add(self, run: SimRun) -> None: ...

    def cancel(self, run: SimRun) -> None:
        """Cancel a run before the next step, whose result lists it."""

    def step(self) -> SimStepResult: ...

    def forecast_decodes(self, max_steps: int) -> "DecodeForecast":
        """Return up to `max_steps` next steps that only decode the current runs and end none of them."""

    def skip(self, steps: int) -> None:
        """Perform the first `steps` of the forecast steps."""

    def occupancy(self) -> EngineOccupancy: ...

    @property
    def has_work(self) -> bool: ...


class ExactEngine:
    """Runs the worker's own `Batch`, token by token."""

    def __init__(self, kind: WorkerKind) -> None:
        pool = BlockPool(kind.kv_blocks, kind.block_size)
        self._batch = Batch(pool=pool, policy=kind.batching, slots=kind.slots, context_length=kind.context_length)
        self._step_time = kind.step_time
        self._runs: dict[int, SimRun] = {}

    @property
    def has_work(self) -> bool:
        return self._batch.has_work

    def add(self, run: SimRun) -> None:
        self._batch.add(
            SequenceSpec(
                seq_id=run.run_id,
                token_ids=run.prompt_content.token_ids(run.prompt_tokens)
                if run.prompt_content
                else range(run.prompt_tokens),
                cache_salt=run.prompt_content.salt if run.prompt_content else b"",
                max_output_tokens=run.max_output_tokens,
                stop_ids=frozenset({STOP_ID}),
                prefill_rank=run.prefill_rank,
            )
        )
        self._runs[run.run_id] = run

    def cancel(self, run: SimRun) -> None:
        self._batch.cancel(run.run_id)

    def step(self) -> SimStepResult:
        plan = self._batch.plan()
        self._record_prefill(plan)
        self._record_cached(plan.result)
        runs = [self._runs[each.spec.seq_id] for each in plan.sampled]
        tokens = [
            STOP_ID if sequence.generated + 1 == run.output_tokens else WORD_ID
            for sequence, run in zip(plan.sampled, runs, strict=True)
        ]
        result = self._batch.commit(plan, tokens, [0.0] * len(tokens))
        for run in runs:
            if run.first_token_step == NO_STEP:
                run.first_token_step = result.step - 1
        finished = [self._runs.pop(each.seq_id) for each in result.finished]
        cancelled = [self._runs.pop(each.seq_id) for each in result.cancelled]
        for run in finished:
            run.last_token_step = result.step - 1
        for run in cancelled:
            run.last_token_step = NO_STEP if run.first_token_step == NO_STEP else result.step - 2
        counts = result.prefill_tokens, result.decode_seqs
        return SimStepResult(self._step_duration(plan), *counts, finished, cancelled, result.cache_changes)

    def forecast_decodes(self, max_steps: int) -> DecodeForecast:
        return DecodeForecast()

    def skip(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def occupancy(self) -> EngineOccupancy:
        capacity = self._batch.capacity()
        return EngineOccupancy(
            capacity.running + capacity.waiting,
            max(0, capacity.blocks_free - capacity.blocks_promised),
            capacity.prefill_backlog_tokens,
        )

    def _record_prefill(self, plan: StepPlan) -> None:
        for part in plan.slices:
            if not part.sequence.generated:
                self._runs[part.sequence.spec.seq_id].prefilled_tokens += part.count

    def _record_cached(self, result: StepResult) -> None:
        for admitted in result.admitted:
            self._runs[admitted.seq_id].cached_tokens = admitted.cached_tokens

    def _step_duration(self, plan: StepPlan) -> float:
        if not plan.decodes and not plan.prefills:
            return 0.0
        return self._step_time.duration_s(work_of(plan.decodes, plan.prefills))
