"""What a simulated worker asks of an engine, and the exact one: the worker's own batch, token by token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from penstock.simulator.scenario import WorkerKind
from penstock.simulator.traffic.shared_prefixes import NOTHING, Beginning
from penstock.worker.engine.batch import Batch
from penstock.worker.engine.blocks import BlockPool
from penstock.worker.engine.interface import SequenceSpec, StepResult
from penstock.worker.engine.plan import StepPlan
from penstock.worker.engine.step_law import work_of

NEVER = -1
NO_NEWS: Mapping[bytes, bool] = MappingProxyType({})
WORD, STOP = 0, 1  # the two token ids of a simulated answer: all but the last, and the last


@dataclass(slots=True, eq=False)
class Run:
    """One sequence in an engine. It gets a token in each step from its first one to its last: a placed run has all
    the KV blocks it may ever need, so nothing is preempted.
    """

    run_id: int
    tenant: str
    prompt: int
    output: int  # tokens it will generate
    declared: int  # tokens it may generate: what KV is kept for
    text: "Text | None" = None  # None: nothing of it is kept for others
    is_express: bool = False  # as its lease says
    prefilled: int = 0  # positions of the prompt that were computed
    cached: int = 0  # positions of it that others had computed
    first: int = NEVER  # step of its first token, from 0
    last: int = NEVER  # step of its last token so far, once it is over

    @property
    def generated(self) -> int:
        return 0 if NEVER in (self.first, self.last) else self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Text:
    """What a run's prompt is made of, for an engine that shares what prompts have in common."""

    number: int  # of its request
    salt: bytes
    beginning: Beginning = NOTHING
    emitted: int = 0  # tokens at its end that are of the answer, from an earlier run

    def token_ids(self, prompt: int) -> list[int]:
        return [*self.beginning.token_ids(prompt - self.emitted, self.number), *[WORD] * self.emitted]


class Stepped(NamedTuple):
    duration: float  # s; 0: there was nothing to compute
    prefill_tokens: int
    decode_seqs: int
    finished: Sequence[Run]
    cancelled: Sequence[Run]
    cache_news: Mapping[bytes, bool] = NO_NEWS  # names of blocks that can be found, or no more


class Quiet(NamedTuple):
    """Steps of which all is known."""

    decodes: int = 0  # of each
    durations: Sequence[float] = ()  # s


class Fill(NamedTuple):
    """How full an engine is, as a worker reports it."""

    running: int  # runs, waiting ones among them
    free_blocks: int  # neither used nor promised
    prefill_backlog: int  # tokens


class SimulatedEngine(Protocol):
    def add(self, run: Run) -> None: ...

    def cancel(self, run: Run) -> None:
        """Take effect before the next step, which tells of it."""

    def step(self) -> Stepped: ...

    def quiet(self, most: int) -> "Quiet":
        """Foresee the next steps, `most` at most, that do nothing but decode who decodes already and end no run."""

    def skip(self, steps: int) -> None:
        """Make the first of those."""

    def fill(self) -> Fill: ...

    @property
    def has_work(self) -> bool: ...


class ExactEngine:
    """Drives `Batch` itself."""

    def __init__(self, kind: WorkerKind) -> None:
        pool = BlockPool(kind.kv_blocks, kind.block_size)
        self._batch = Batch(pool=pool, policy=kind.batching, slots=kind.slots, context_length=kind.context_length)
        self._law = kind.law
        self._runs: dict[int, Run] = {}

    @property
    def has_work(self) -> bool:
        return self._batch.has_work

    def add(self, run: Run) -> None:
        self._batch.add(
            SequenceSpec(
                seq_id=run.run_id,
                token_ids=run.text.token_ids(run.prompt) if run.text else range(run.prompt),
                cache_salt=run.text.salt if run.text else b"",
                max_output_tokens=run.declared,
                stop_ids=frozenset({STOP}),
                is_express=run.is_express,
            )
        )
        self._runs[run.run_id] = run

    def cancel(self, run: Run) -> None:
        self._batch.cancel(run.run_id)

    def step(self) -> Stepped:
        plan = self._batch.plan()
        self._note_prefill(plan)
        self._note_cached(plan.result)
        runs = [self._runs[each.spec.seq_id] for each in plan.sampled]
        tokens = [
            STOP if sequence.generated + 1 == run.output else WORD
            for sequence, run in zip(plan.sampled, runs, strict=True)
        ]
        result = self._batch.commit(plan, tokens, [0.0] * len(tokens))
        for run in runs:
            if run.first == NEVER:
                run.first = result.step - 1
        finished = [self._runs.pop(each.seq_id) for each in result.finished]
        cancelled = [self._runs.pop(each.seq_id) for each in result.cancelled]
        for run in finished:
            run.last = result.step - 1
        for run in cancelled:
            run.last = NEVER if run.first == NEVER else result.step - 2
        counts = result.prefill_tokens, result.decode_seqs
        return Stepped(self._duration(plan), *counts, finished, cancelled, result.cache_changes)

    def quiet(self, most: int) -> Quiet:
        return Quiet()

    def skip(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def fill(self) -> Fill:
        capacity = self._batch.capacity()
        return Fill(
            capacity.running + capacity.waiting,
            max(0, capacity.blocks_free - capacity.blocks_promised),
            capacity.prefill_backlog_tokens,
        )

    def _note_prefill(self, plan: StepPlan) -> None:
        for part in plan.slices:
            if not part.sequence.generated:
                self._runs[part.sequence.spec.seq_id].prefilled += part.count

    def _note_cached(self, result: StepResult) -> None:
        for admitted in result.admitted:
            self._runs[admitted.seq_id].cached = admitted.cached_tokens

    def _duration(self, plan: StepPlan) -> float:
        if not plan.decodes and not plan.prefills:
            return 0.0
        return self._law.duration_s(work_of(plan.decodes, plan.prefills))
