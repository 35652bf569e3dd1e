"""Iteration-level batching: selects the sequences of each step and applies the step's tokens.

Knows no clock, tensor or pipe; real and simulated engines run this code. Each step is `plan`, then the computation by
the engine, then `commit`.
"""

from collections import deque
from collections.abc import Sequence as Values
from dataclasses import dataclass, field

from penstock.chassis.prefix_depths import NAMED_DEPTHS
from penstock.mesh.prefill_rank import BATCH_RANK
from penstock.worker.engine.batching.block_pool import NO_WRITER, BlockPool
from penstock.worker.engine.batching.errors import StartInvalid, check_spec
from penstock.worker.engine.batching.masks import TokenMask, build_mask
from penstock.worker.engine.batching.policy import BatchingPolicy, Yielding
from penstock.worker.engine.batching.sequence import Sequence, Slice, StepPlan
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


@dataclass(slots=True, kw_only=True)
class Batch:
    """All sequences of one engine.

    Invariant: each running sequence is older than each waiting one. Admission is in order of arrival and preemption
    takes the newest, so the oldest always progresses and the batch cannot deadlock. A sequence that waits for the
    content of a shared block waits for an older sequence, because the first one admitted fills the block.
    """

    pool: BlockPool
    policy: BatchingPolicy
    slots: int
    context_length: int  # tokens
    eos_ids: frozenset[int] = frozenset()
    step: int = 0
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    slots_taken: int = 0  # in a static batch, finished sequences keep their slots
    _sequences: dict[int, Sequence] = field(default_factory=dict)  # running and waiting, by seq_id
    _cancelling: list[int] = field(default_factory=list)
    # These two sums are updated with each sequence, as summing over all sequences in each step would take time.
    _promised_blocks: int = 0
    _prefill_backlog_tokens: int = 0
    _yielding: Yielding = field(default_factory=Yielding)

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"a batch needs slots above 0, not {self.slots}")

    def __repr__(self) -> str:
        return f"<Batch step {self.step}: {len(self.running)} running, {len(self.waiting)} waiting, {self.pool!r}>"

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def add(self, spec: SequenceSpec, mask: TokenMask | None = None) -> None:
        """Queue a sequence. `mask`: of its constraint; None: built here, or no constraint."""
        self.check(spec)
        end_ids = spec.end_ids(self.eos_ids)
        if mask is None and spec.constraint:
            mask = build_mask(spec.constraint, end_ids)
        sequence = Sequence(spec, end_ids, mask)
        self._sequences[spec.seq_id] = sequence
        self.waiting.append(sequence)
        self._yielding.on_added(spec.prefill_rank, self.step)
        self._count(sequence, 1)

    def cancel(self, seq_id: int) -> bool:
        """Cancel a sequence at the next plan, whose result has the receipt. Return False for an unknown sequence."""
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

    def commit(
        self, plan: StepPlan, tokens: Values[int], logprobs: Values[float], embeddings: Values[bytes] = ()
    ) -> StepResult:
        """Apply the results of the step.

        One token and logprob for each of `plan.sampled` and one embedding for each of `plan.embedded`, in their order.
        """
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
        for sequence, embedding in zip(plan.embedded, embeddings, strict=True):
            self._finish(sequence, FinishReason.STOP, plan.result, embedding)
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
        """Add (1) or subtract (-1) a sequence's open blocks and prefill tokens; called after and before it changes."""
        self._promised_blocks += sign * (self.pool.blocks_for(sequence.max_total_tokens) - len(sequence.table))
        if sequence.remaining > 1 and sequence.spec.prefill_rank < BATCH_RANK:  # others do not wait for batch prompts
            self._prefill_backlog_tokens += sign * sequence.remaining

    def check(self, spec: SequenceSpec) -> None:
        """Raise StartInvalid or PromptTooLong for a sequence that cannot be added."""
        if spec.seq_id in self._sequences:
            raise StartInvalid(f"sequence {spec.seq_id} already exists; choose another id")
        check_spec(spec, context_length=self.context_length, blocks=self.pool.blocks, block_size=self.pool.block_size)

    def _release_cancelled(self) -> list[SequenceCancelled]:
        receipts = []
        for seq_id in self._cancelling:
            sequence = self._sequences.pop(seq_id)
            self._count(sequence, -1)
            receipts.append(SequenceCancelled(seq_id, sequence.generated, self.pool.release(sequence.table, seq_id)))
        if receipts:
            released = {receipt.seq_id for receipt in receipts}
            self.waiting = deque(each for each in self.waiting if each.spec.seq_id not in released)
            self._remove_from_running(released)
            self._cancelling.clear()
        return receipts

    def _plan_decodes(self, result: StepResult) -> list[Slice]:
        # A sequence preempted for an older one is still in this copy, without a table. The conditions are ordered by
        # cost, because each step evaluates them for each decoding sequence.
        block_size = self.pool.block_size
        return [
            Slice(sequence, sequence.computed, 1)
            for sequence in list(self.running)
            if sequence.computed + 1 == len(sequence.ids)
            and sequence.table
            and not sequence.spec.embeds  # which gets no token, so that its last position is a prefill, too
            and (sequence.filled_blocks == sequence.shared_blocks or self._has_shared_content(sequence))
            and (len(sequence.ids) <= len(sequence.table) * block_size or self._grow(sequence, result))
        ]

    def _grow(self, sequence: Sequence, result: StepResult) -> bool:
        """Allocate a block for the next position, preempting the newest sequences. Return False if it was preempted."""
        while len(sequence.table) * self.pool.block_size < len(sequence.ids):
            if self.pool.extend(sequence.table):
                self._promised_blocks -= 1
            else:
                newest = self.running[-1]
                self._preempt(newest)
                result.preempted = (*result.preempted, newest.spec.seq_id)
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
        """Allocate blocks for all known tokens of a sequence, and share those whose content is in the prefix cache."""
        known = len(sequence.ids)
        # The last token is always recomputed for its logits, so its block is never shared.
        shareable = (known - 1) // self.pool.block_size if sequence.can_share else 0
        hashes = sequence.hash_blocks(shareable, self.pool.block_size)
        found = self.pool.find_prefix(hashes)
        # One block per running sequence stays free; otherwise an admission would cause preemptions within a few steps.
        table = self.pool.allocate(found, self.pool.blocks_for(known) - len(found), min_free=len(self.running))
        if table is None:
            return False
        for block in range(len(found), shareable):
            self.pool.announce(table[block], hashes[block], sequence.spec.seq_id)
        self._count(sequence, -1)
        sequence.table = table
        sequence.shared_blocks = sequence.published_blocks = len(found)
        sequence.filled_blocks = 0
        sequence.computed = len(found) * self.pool.block_size
        self._count(sequence, 1)
        return True

    def _has_shared_content(self, sequence: Sequence) -> bool:
        """Whether all blocks that a sequence shares have their content."""
        while (
            sequence.filled_blocks < sequence.shared_blocks
            and self.pool.writer(sequence.table[sequence.filled_blocks]) is None
        ):
            sequence.filled_blocks += 1
        return sequence.filled_blocks == sequence.shared_blocks

    def _claim_unwritten(self, sequence: Sequence) -> bool:
        """Let a sequence compute the shared blocks that it waits for, if their writer has left."""
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
        ranks = [each.spec.prefill_rank for each in prefilling]
        chunks = self.policy.split_prefill(
            [each.remaining for each in prefilling], len(decodes), ranks, yields=self._yielding.is_due(self.step)
        )
        pairs = zip(prefilling, chunks, strict=True)
        return [Slice(sequence, sequence.computed, chunk) for sequence, chunk in pairs if chunk]

    def _publish(self, sequence: Sequence) -> None:
        if not sequence.can_share:
            return
        full = sequence.computed // self.pool.block_size
        if full > sequence.published_blocks:
            hashes = sequence.hash_blocks(full, self.pool.block_size)
            for block in range(sequence.published_blocks, full):
                self.pool.publish(sequence.table[block], hashes[block], is_reported=block + 1 in NAMED_DEPTHS)
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

    def _finish(self, sequence: Sequence, reason: FinishReason, result: StepResult, embedding: bytes = b"") -> None:
        self._count(sequence, -1)
        self.pool.release(sequence.table, sequence.spec.seq_id)
        del self._sequences[sequence.spec.seq_id]
        cached = sequence.cached_tokens or 0
        result.finished.append(SequenceFinished(sequence.spec.seq_id, reason, sequence.generated, cached, embedding))

    def _remove_from_running(self, seq_ids: set[int]) -> None:
        self.running = [each for each in self.running if each.spec.seq_id not in seq_ids]
        self.slots_taken = self.policy.slots_taken(self.slots_taken, len(self.running))
