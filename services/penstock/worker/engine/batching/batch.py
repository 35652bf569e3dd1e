"""Iteration-level batching: which sequences the next step works on, and what its tokens change.

Knows no clock, no tensor and no pipe: real engines and simulated ones drive this very code.
Each step is `plan`, the computing in between, `commit`.
"""

from collections import deque
from collections.abc import Sequence as Values
from dataclasses import dataclass, field

from penstock.worker.engine.batching.block_pool import NO_WRITER, BlockPool
from penstock.worker.engine.batching.errors import StartInvalid, check_spec
from penstock.worker.engine.batching.masks import build_mask
from penstock.worker.engine.batching.plan import Slice, StepPlan
from penstock.worker.engine.batching.policy import BatchingPolicy
from penstock.worker.engine.batching.sequence import Sequence
from penstock.worker.engine.interface import (
    Capacity,
    FinishReason,
    SequenceAdmitted,
    SequenceCancelled,
    SequenceFinished,
    SequencePrefilled,
    SequenceSpec,
    StepResult,
)

MAX_REPORTED_BLOCKS = 64  # leading blocks of a sequence, as far as tickets name their prompts


@dataclass(slots=True, kw_only=True)
class Batch:
    """All sequences of one engine.

    Invariant: everyone running is older than everyone waiting. Admission is first come first served and preemption
    takes the newest, so the oldest always goes on and the batch cannot lock itself up. Who waits for the content of a
    shared block waits for an older sequence, as whoever was admitted first fills it.
    """

    pool: BlockPool
    policy: BatchingPolicy
    slots: int
    context_length: int  # tokens
    eos_ids: frozenset[int] = frozenset()
    step: int = 0
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    slots_taken: int = 0  # slots taken; in a static batch finished members keep theirs
    _sequences: dict[int, Sequence] = field(default_factory=dict)
    _cancelling: list[int] = field(default_factory=list)
    _promised_blocks: int = (
        0  # blocks; this and the next are kept up, as summing over all sequences would cost each step
    )
    _prefill_backlog_tokens: int = 0  # tokens

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
        sequence = Sequence(spec, end_ids, build_mask(spec.constraint, end_ids) if spec.constraint else None)
        self._sequences[spec.seq_id] = sequence
        self.waiting.append(sequence)
        self._count(sequence, 1)

    def cancel(self, seq_id: int) -> bool:
        """Take effect at the next plan, whose result holds the receipt. False when the sequence is not here."""
        if seq_id not in self._sequences or seq_id in self._cancelling:
            return False
        self._cancelling.append(seq_id)
        return True

    def plan(self) -> StepPlan:
        self.step += 1
        result = StepResult(self.step, cancelled=self._release_cancelled())
        decodes = self._plan_decodes(result)
        if not result.preempted:
            self._admit(result)
        prefills = self._plan_prefills(decodes)
        result.decode_seqs = len(decodes)
        result.prefilled = [SequencePrefilled(part.sequence.spec.seq_id, part.count) for part in prefills]
        result.prefill_tokens = sum(part.count for part in prefills)
        return StepPlan(decodes, prefills, result)

    def commit(self, plan: StepPlan, tokens: Values[int], logprobs: Values[float]) -> StepResult:
        """Enter what the step computed: one token and logprob for each of `plan.sampled`, in that order."""
        for part in plan.decodes:
            sequence = part.sequence
            sequence.computed += 1
            if sequence.spec.cache_salt:
                self._publish(sequence)
        for part in plan.prefills:
            self._count(part.sequence, -1)
            part.sequence.computed += part.count
            self._count(part.sequence, 1)
            self._publish(part.sequence)
        self._emit(plan.sampled, tokens, logprobs, plan.result)
        if plan.result.finished:
            self._remove_from_running({done.seq_id for done in plan.result.finished})
        plan.result.cache_changes = self.pool.pop_cache_changes()
        return plan.result

    def capacity(self) -> Capacity:
        return Capacity(
            slots=self.slots,
            slots_free=self.slots - self.slots_taken,
            blocks=self.pool.blocks,
            blocks_free=self.pool.free,
            blocks_cached=self.pool.cached,
            blocks_promised=self._promised_blocks,
            block_size=self.pool.block_size,
            waiting=len(self.waiting),
            running=len(self.running),
            prefill_backlog_tokens=self._prefill_backlog_tokens,
        )

    def _count(self, sequence: Sequence, sign: int) -> None:
        """Add what a sequence has yet to take and to prefill, or subtract it, before it changes and after."""
        self._promised_blocks += sign * (self.pool.blocks_for(sequence.max_total_tokens) - len(sequence.table))
        if sequence.remaining > 1:
            self._prefill_backlog_tokens += sign * sequence.remaining

    def _check(self, spec: SequenceSpec) -> None:
        if spec.seq_id in self._sequences:
            raise StartInvalid(f"sequence {spec.seq_id} is here already; choose another id")
        check_spec(spec, context_length=self.context_length, blocks=self.pool.blocks, block_size=self.pool.block_size)

    def _release_cancelled(self) -> list[SequenceCancelled]:
        receipts = []
        for seq_id in self._cancelling:
            sequence = self._sequences.pop(seq_id)
            self._count(sequence, -1)
            receipts.append(SequenceCancelled(seq_id, sequence.generated, self.pool.release(sequence.table, seq_id)))
        if receipts:
            gone = {receipt.seq_id for receipt in receipts}
            self.waiting = deque(each for each in self.waiting if each.spec.seq_id not in gone)
            self._remove_from_running(gone)
            self._cancelling.clear()
        return receipts

    def _plan_decodes(self, result: StepResult) -> list[Slice]:
        # A sequence preempted for an older one is still in this copy, without a table. What holds for most is looked at
        # first: a step costs this for each that decodes.
        block_size = self.pool.block_size
        return [
            Slice(sequence, sequence.computed, 1)
            for sequence in list(self.running)
            if sequence.computed + 1 == len(sequence.ids)
            and sequence.table
            and (sequence.filled_blocks == sequence.shared_blocks or self._has_shared_content(sequence))
            and (len(sequence.ids) <= len(sequence.table) * block_size or self._grow(sequence, result))
        ]

    def _grow(self, sequence: Sequence, result: StepResult) -> bool:
        """Have a block for the next position, preempting the newest as needed; False when that was itself."""
        while len(sequence.table) * self.pool.block_size < len(sequence.ids):
            if self.pool.extend(sequence.table):
                self._promised_blocks -= 1
            else:
                newest = self.running[-1]
                self._preempt(newest)
                result.preempted += 1
                if newest is sequence:
                    return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.pop()
        self.slots_taken = self.policy.slots_taken(self.slots_taken, len(self.running))
        self._count(sequence, -1)
        self.pool.release(sequence.table, sequence.spec.seq_id)
        sequence.computed = sequence.shared_blocks = sequence.filled_blocks = 0
        self._count(sequence, 1)
        self.waiting.appendleft(sequence)

    def _admit(self, result: StepResult) -> None:
        for _ in range(self.policy.max_joining(self.slots_taken, self.slots)):
            if not self.waiting or not self._allocate(self.waiting[0]):
                return
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            self.slots_taken += 1
            if sequence.cached_tokens is None:
                sequence.cached_tokens = min(sequence.computed, sequence.prompt_tokens)
                result.admitted.append(SequenceAdmitted(sequence.spec.seq_id, sequence.cached_tokens))

    def _allocate(self, sequence: Sequence) -> bool:
        """Give a sequence blocks for all its known tokens, as many as possible with their KV in them already."""
        known = len(sequence.ids)
        # The last token is always computed anew, for its logits; so its block is nobody else's to write.
        shareable = (known - 1) // self.pool.block_size if sequence.can_share else 0
        names = sequence.hash_blocks(shareable, self.pool.block_size)
        found = self.pool.find_prefix(names)
        # One block for each that runs stays free, or admitting would preempt within a few steps.
        table = self.pool.allocate(found, self.pool.blocks_for(known) - len(found), min_free=len(self.running))
        if table is None:
            return False
        for block in range(len(found), shareable):
            self.pool.announce(table[block], names[block], sequence.spec.seq_id)
        self._count(sequence, -1)
        sequence.table = table
        sequence.shared_blocks = sequence.published_blocks = len(found)
        sequence.filled_blocks = 0
        sequence.computed = len(found) * self.pool.block_size
        self._count(sequence, 1)
        return True

    def _has_shared_content(self, sequence: Sequence) -> bool:
        """Whether all blocks that a sequence shares have their content by now."""
        while (
            sequence.filled_blocks < sequence.shared_blocks
            and self.pool.writer(sequence.table[sequence.filled_blocks]) is None
        ):
            sequence.filled_blocks += 1
        return sequence.filled_blocks == sequence.shared_blocks

    def _claim_unwritten(self, sequence: Sequence) -> bool:
        """Have a sequence fill what it waits for, if the one that was to has left."""
        awaited = sequence.table[sequence.filled_blocks : sequence.shared_blocks]
        if self.pool.writer(awaited[0]) != NO_WRITER:
            return False
        for block in awaited:
            self.pool.claim(block, sequence.spec.seq_id)
        self._count(sequence, -1)
        sequence.shared_blocks = sequence.published_blocks = sequence.filled_blocks
        sequence.computed = sequence.filled_blocks * self.pool.block_size
        self._count(sequence, 1)
        return True

    def _plan_prefills(self, decodes: list[Slice]) -> list[Slice]:
        if len(decodes) == len(self.running):
            return []
        decoding = {part.sequence.spec.seq_id for part in decodes}
        prefilling = [
            each
            for each in self.running
            if each.spec.seq_id not in decoding and (self._has_shared_content(each) or self._claim_unwritten(each))
        ]
        urgent = [each.spec.is_express for each in prefilling]
        chunks = self.policy.split_prefill([each.remaining for each in prefilling], len(decodes), urgent)
        pairs = zip(prefilling, chunks, strict=True)
        return [Slice(sequence, sequence.computed, chunk) for sequence, chunk in pairs if chunk]

    def _publish(self, sequence: Sequence) -> None:
        if not sequence.can_share:
            return
        full = sequence.computed // self.pool.block_size
        if full > sequence.published_blocks:
            names = sequence.hash_blocks(full, self.pool.block_size)
            for block in range(sequence.published_blocks, full):
                self.pool.publish(sequence.table[block], names[block], is_reported=block < MAX_REPORTED_BLOCKS)
            sequence.published_blocks = full

    def _emit(
        self, sampled: Values[Sequence], tokens: Values[int], logprobs: Values[float], result: StepResult
    ) -> None:
        result.seq_ids = [sequence.spec.seq_id for sequence in sampled]
        result.tokens = list(tokens)
        result.indexes = [len(sequence.ids) - sequence.prompt_tokens for sequence in sampled]
        result.logprobs = list(logprobs)
        for sequence, token in zip(sampled, tokens, strict=True):
            ids = sequence.ids
            ids.append(token)
            if token in sequence.end_ids:
                self._finish(sequence, FinishReason.STOP, result)
            elif len(ids) == sequence.max_total_tokens:
                self._finish(sequence, FinishReason.LENGTH, result)

    def _finish(self, sequence: Sequence, reason: FinishReason, result: StepResult) -> None:
        self._count(sequence, -1)
        self.pool.release(sequence.table, sequence.spec.seq_id)
        del self._sequences[sequence.spec.seq_id]
        cached = sequence.cached_tokens or 0
        result.finished.append(SequenceFinished(sequence.spec.seq_id, reason, sequence.generated, cached))

    def _remove_from_running(self, gone: set[int]) -> None:
        self.running = [each for each in self.running if each.spec.seq_id not in gone]
        self.slots_taken = self.policy.slots_taken(self.slots_taken, len(self.running))
