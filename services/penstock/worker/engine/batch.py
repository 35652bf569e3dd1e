"""Iteration-level batching: which sequences the next step works on, and what its tokens change.

Knows no clock, no tensor and no pipe: real engines and simulated ones drive this very code.
Each step is `plan`, the computing in between, `commit`.
"""

from collections import deque
from collections.abc import Sequence as Values
from dataclasses import dataclass, field

from penstock.worker.engine.batching import Batching
from penstock.worker.engine.blocks import BlockPool
from penstock.worker.engine.errors import StartInvalid, exceeds_context, exceeds_pool
from penstock.worker.engine.interface import (
    Admitted,
    Cancelled,
    Capacity,
    Finished,
    FinishReason,
    SequenceSpec,
    StepResult,
)
from penstock.worker.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of one sequence that a step computes: `count` positions from `start` on."""

    sequence: Sequence
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def samples(self) -> bool:
        return self.end == len(self.sequence.ids)


@dataclass(slots=True)
class StepPlan:
    decodes: list[Slice]
    prefills: list[Slice]
    result: StepResult  # what is known of it before the computing

    @property
    def slices(self) -> list[Slice]:
        return self.decodes + self.prefills

    @property
    def sampled(self) -> list[Sequence]:
        """Sequences that get a token, in the order in which `commit` expects the tokens."""
        return [part.sequence for part in self.slices if part.samples]


@dataclass(slots=True, kw_only=True)
class Batch:
    """All sequences of one engine.

    Invariant: everyone running is older than everyone waiting. Admission is first come first served and preemption
    takes the newest, so the oldest always goes on and the batch cannot lock itself up.
    """

    pool: BlockPool
    batching: Batching
    slots: int
    context_length: int  # tokens
    eos_ids: frozenset[int] = frozenset()
    step: int = 0
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    members: int = 0  # slots taken; in a static batch finished members keep theirs
    _sequences: dict[int, Sequence] = field(default_factory=dict)
    _leaving: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"a batch needs slots above 0, not {self.slots}")

    def __repr__(self) -> str:
        return f"<Batch step {self.step}: {len(self.running)} running, {len(self.waiting)} waiting, {self.pool!r}>"

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def add(self, spec: SequenceSpec) -> None:
        self._check(spec)
        end_ids = spec.stop_ids if spec.ignore_eos else spec.stop_ids | self.eos_ids
        sequence = Sequence(spec, end_ids)
        self._sequences[spec.seq_id] = sequence
        self.waiting.append(sequence)

    def cancel(self, seq_id: int) -> bool:
        """Take effect at the next plan, whose result holds the receipt. False when the sequence is not here."""
        if seq_id not in self._sequences or seq_id in self._leaving:
            return False
        self._leaving.append(seq_id)
        return True

    def plan(self) -> StepPlan:
        self.step += 1
        result = StepResult(self.step, cancelled=self._let_go())
        decodes = self._plan_decodes(result)
        if not result.preempted:
            self._admit(result)
        prefills = self._plan_prefills(decodes)
        result.decode_seqs = len(decodes)
        result.prefill_tokens = sum(part.count for part in prefills)
        return StepPlan(decodes, prefills, result)

    def commit(self, plan: StepPlan, tokens: Values[int], logprobs: Values[float]) -> StepResult:
        """Enter what the step computed: one token and logprob for each of `plan.sampled`, in that order."""
        sampled = plan.sampled
        for part in plan.slices:
            part.sequence.computed = part.end
            self._publish(part.sequence)
        for sequence, token, logprob in zip(sampled, tokens, logprobs, strict=True):
            self._emit(sequence, token, logprob, plan.result)
        if plan.result.finished:
            self._remove_from_running({done.seq_id for done in plan.result.finished})
        return plan.result

    def capacity(self) -> Capacity:
        alive = self._sequences.values()
        return Capacity(
            slots=self.slots,
            slots_free=self.slots - self.members,
            blocks=self.pool.blocks,
            blocks_free=self.pool.free,
            blocks_cached=self.pool.cached,
            blocks_promised=sum(self.pool.blocks_for(each.final_tokens) - len(each.table) for each in alive),
            block_size=self.pool.block_size,
            waiting=len(self.waiting),
            running=len(self.running),
            prefill_backlog_tokens=sum(each.remaining for each in alive if each.remaining > 1),
        )

    def _check(self, spec: SequenceSpec) -> None:
        prompt, output = len(spec.token_ids), spec.max_output_tokens
        if spec.seq_id in self._sequences:
            raise StartInvalid(f"sequence {spec.seq_id} is here already; choose another id")
        if not 0 <= spec.emitted < prompt:
            raise StartInvalid(f"{spec.emitted} of {prompt} token ids are said to be emitted; a prompt must be left")
        if output < 1:
            raise StartInvalid(f"max_output_tokens is {output}; it must be at least 1")
        if prompt + output > self.context_length:
            raise exceeds_context(prompt, output, self.context_length)
        needed = self.pool.blocks_for(prompt + output)
        if needed > self.pool.blocks:
            raise exceeds_pool(prompt, output, needed, self.pool.blocks)

    def _let_go(self) -> list[Cancelled]:
        receipts = []
        for seq_id in self._leaving:
            sequence = self._sequences.pop(seq_id)
            receipts.append(Cancelled(seq_id, sequence.generated, self.pool.release(sequence.table)))
        if receipts:
            gone = {receipt.seq_id for receipt in receipts}
            self.waiting = deque(each for each in self.waiting if each.spec.seq_id not in gone)
            self._remove_from_running(gone)
            self._leaving.clear()
        return receipts

    def _plan_decodes(self, result: StepResult) -> list[Slice]:
        # A sequence preempted for an older one is still in this copy, without a table.
        return [
            Slice(sequence, sequence.computed, 1)
            for sequence in list(self.running)
            if sequence.remaining == 1 and sequence.table and self._grow(sequence, result)
        ]

    def _grow(self, sequence: Sequence, result: StepResult) -> bool:
        """Have a block for the next position, preempting the newest as needed; False when that was itself."""
        while len(sequence.table) * self.pool.block_size < len(sequence.ids):
            if not self.pool.extend(sequence.table):
                newest = self.running[-1]
                self._preempt(newest)
                result.preempted += 1
                if newest is sequence:
                    return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.pop()
        self.members = self.batching.taken(self.members, len(self.running))
        self.pool.release(sequence.table)
        sequence.computed = 0
        self.waiting.appendleft(sequence)

    def _admit(self, result: StepResult) -> None:
        for _ in range(self.batching.joiners(self.members, self.slots)):
            if not self.waiting or not self._open(self.waiting[0]):
                return
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            self.members += 1
            if sequence.cached_tokens is None:
                sequence.cached_tokens = min(sequence.computed, sequence.prompt_tokens)
                result.admitted.append(Admitted(sequence.spec.seq_id, sequence.cached_tokens))

    def _open(self, sequence: Sequence) -> bool:
        """Give a sequence blocks for all its known tokens, as many as possible with their KV in them already."""
        known = len(sequence.ids)
        # The last token is always computed anew, for its logits.
        shareable = (known - 1) // self.pool.block_size if sequence.shares else 0
        shared = self.pool.find(sequence.name_blocks(shareable, self.pool.block_size))
        # One block for each that runs stays free, or admitting would preempt within a few steps.
        table = self.pool.open(shared, self.pool.blocks_for(known) - len(shared), keep=len(self.running))
        if table is None:
            return False
        sequence.table = table
        sequence.published = len(shared)
        sequence.computed = len(shared) * self.pool.block_size
        return True

    def _plan_prefills(self, decodes: list[Slice]) -> list[Slice]:
        decoding = {part.sequence.spec.seq_id for part in decodes}
        prefilling = [each for each in self.running if each.spec.seq_id not in decoding]
        chunks = self.batching.split_prefill([each.remaining for each in prefilling], len(decodes))
        pairs = zip(prefilling, chunks, strict=True)
        return [Slice(sequence, sequence.computed, chunk) for sequence, chunk in pairs if chunk]

    def _publish(self, sequence: Sequence) -> None:
        full = sequence.computed // self.pool.block_size
        if sequence.shares and full > sequence.published:
            names = sequence.name_blocks(full, self.pool.block_size)
            for block in range(sequence.published, full):
                self.pool.publish(sequence.table[block], names[block])
            sequence.published = full

    def _emit(self, sequence: Sequence, token: int, logprob: float, result: StepResult) -> None:
        result.seq_ids.append(sequence.spec.seq_id)
        result.tokens.append(token)
        result.indexes.append(sequence.spec.emitted + sequence.generated)
        result.logprobs.append(logprob)
        sequence.ids.append(token)
        if token in sequence.end_ids:
            self._finish(sequence, FinishReason.STOP, result)
        elif sequence.generated == sequence.spec.max_output_tokens:
            self._finish(sequence, FinishReason.LENGTH, result)

    def _finish(self, sequence: Sequence, reason: FinishReason, result: StepResult) -> None:
        self.pool.release(sequence.table)
        del self._sequences[sequence.spec.seq_id]
        cached = sequence.cached_tokens or 0
        result.finished.append(Finished(sequence.spec.seq_id, reason, sequence.generated, cached))

    def _remove_from_running(self, gone: set[int]) -> None:
        self.running = [each for each in self.running if each.spec.seq_id not in gone]
        self.members = self.batching.taken(self.members, len(self.running))
