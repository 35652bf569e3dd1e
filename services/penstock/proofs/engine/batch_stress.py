"""Thousands of requests, some cancelled, through one batch with a sixth of the KV blocks that its slots need.

The engine may be the simulated one, which proves the batch, or a real one, which proves its computation as well.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.worker.engine.interface import Engine, SequenceSpec, StepResult

SLOTS, BLOCK_SIZE = 32, 16
MEAN_FINAL_TOKENS = 58  # prompts have 4 to 48 tokens, outputs 1 to 63
KV_BLOCKS = SLOTS * MEAN_FINAL_TOKENS // BLOCK_SIZE // 6
CANCEL_PROBABILITY = 0.1  # per step
SALTS = (b"", b"tenant a", b"tenant b")


@dataclass(slots=True)
class BatchStress:
    """Keeps an engine full until all `requests` have ended, and counts events and errors."""

    engine: Engine
    requests: int
    token_ids: Sequence[int]
    seed: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    _running: dict[int, tuple[SequenceSpec, list[int]]] = field(default_factory=dict)
    _longest_answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # by prompt

    def run(self) -> None:
        rng = random.Random(self.seed)
        texts = [rng.choices(self.token_ids, k=48) for _ in range(4)]
        prompts = [rng.choice(texts)[: rng.randint(4, 48)] for _ in range(40)]
        added = 0
        while self._running or added < self.requests:
            while len(self._running) < 2 * SLOTS and added < self.requests:
                self._add(added, rng.choice(prompts), rng.randint(1, 63), rng.choice(SALTS))
                added += 1
            if rng.random() < CANCEL_PROBABILITY:
                self.engine.cancel(rng.choice(list(self._running)))
            self._apply(self.engine.step())
        capacity = self.engine.capacity()
        self.counts["blocks not freed"] = capacity.blocks - capacity.blocks_free + capacity.blocks_promised

    @property
    def errors(self) -> int:
        """Tokens missing, doubled or out of order, answers of a wrong length, and requests that never ended."""
        return self.counts["misplaced"] + self.counts["cut"] + self.requests - self.counts["ended"]

    def _add(self, number: int, prompt: list[int], output: int, salt: bytes) -> None:
        spec = SequenceSpec(seq_id=number, token_ids=prompt, max_output_tokens=output, ignore_eos=True, cache_salt=salt)
        self.engine.add(spec)
        self._running[number] = spec, []

    def _apply(self, result: StepResult) -> None:
        self.counts["steps"] += 1
        self.counts["preempted"] += result.preempted
        for seq_id, index, token in zip(result.seq_ids, result.indexes, result.tokens, strict=True):
            tokens = self._running[seq_id][1]
            self.counts["misplaced"] += index != len(tokens)
            tokens.append(token)
        for done in result.finished:
            spec, tokens = self._running.pop(done.seq_id)
            self.counts["cut"] += len(tokens) != spec.max_output_tokens
            self.counts["cached"] += bool(done.cached_tokens)
            self.counts["ended"] += 1
            self._compare_answer(tuple(spec.token_ids), tokens)
        for gone in result.cancelled:
            self.counts["cut"] += gone.output_tokens != len(self._running.pop(gone.seq_id)[1])
            self.counts["ended"] += 1
            self.counts["cancelled"] += 1

    def _compare_answer(self, prompt: tuple[int, ...], tokens: list[int]) -> None:
        """Compare greedy answers to one prompt: each is a prefix of the longest."""
        known = self._longest_answers.setdefault(prompt, tokens)
        shorter = min(len(known), len(tokens))
        self.counts["changed"] += known[:shorter] != tokens[:shorter]
        self._longest_answers[prompt] = max(known, tokens, key=len)
