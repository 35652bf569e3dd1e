"""Stress of one engine: many requests with shared prefixes, random cancels, and too little KV memory."""

import random
from collections import Counter
from dataclasses import dataclass, field

from penstock.worker.engine.interface import SequenceSpec

SALTS = (b"", b"tenant a", b"tenant b")
SLOTS, BLOCK_SIZE = 32, 16
MEAN_FINAL_TOKENS = 58  # on average: of prompts of 4 to 48 and outputs of 1 to 63
KV_BLOCKS = SLOTS * MEAN_FINAL_TOKENS // BLOCK_SIZE // 4
CONTEXT_LENGTH = 128


def prompts(count=40):
    """Prompts of 4 to 48 tokens, all prefixes of a few texts, so that many share blocks, cached or being computed."""
    rng = random.Random(5)
    texts = [[rng.randrange(3, 300) for _ in range(48)] for _ in range(4)]
    return [rng.choice(texts)[: rng.randrange(4, 49)] for _ in range(count)]


@dataclass
class EngineStress:
    """Keeps an engine full until all requests have ended, and asserts the contract at each step."""

    engine: object
    requests: int
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    prompts: list = field(default_factory=prompts)
    running: dict = field(default_factory=dict)  # spec and tokens so far, by seq_id
    longest_answers: dict = field(default_factory=dict)  # longest text seen of each prompt
    counts: Counter = field(default_factory=Counter)
    added: int = 0

    def run(self, until=None):
        """Step until `until` requests were added, or until all have ended."""
        while self.added < (until or self.requests) or (until is None and self.running):
            while len(self.running) < SLOTS * 2 and self.added < self.requests:
                self._add()
            if self.running and self.rng.random() < 0.1:
                self.engine.cancel(self.rng.choice(list(self.running)))
            self._apply(self.engine.step())
            self.counts["steps"] += 1
            assert self.counts["steps"] < 100 * self.requests, self.engine

    def _add(self):
        self.added += 1
        prompt = self.rng.choice(self.prompts)
        output = self.rng.randrange(1, 64)
        spec = SequenceSpec(
            seq_id=self.added,
            token_ids=prompt,
            max_output_tokens=output,
            ignore_eos=True,
            cache_salt=self.rng.choice(SALTS),
        )
        self.engine.add(spec)
        self.running[spec.seq_id] = (spec, [])

    def _apply(self, result):
        for seq_id, index, token in zip(result.seq_ids, result.indexes, result.tokens, strict=True):
            tokens = self.running[seq_id][1]
            assert index == len(tokens)
            tokens.append(token)
        self.counts["preempted"] += len(result.preempted)
        for done in result.finished:
            spec, tokens = self.running.pop(done.seq_id)
            assert done.output_tokens == len(tokens) == spec.max_output_tokens
            self.counts["finished"] += 1
            self.counts["cached"] += bool(done.cached_tokens)
            self._compare_answer(tuple(spec.token_ids), tokens)
        for cancelled in result.cancelled:
            assert cancelled.output_tokens == len(self.running.pop(cancelled.seq_id)[1])
            self.counts["cancelled"] += 1

    def _compare_answer(self, prompt, tokens):
        """All greedy answers to one prompt are prefixes of one text."""
        known = self.longest_answers.setdefault(prompt, tokens)
        shorter = min(len(known), len(tokens))
        self.counts["different"] += known[:shorter] != tokens[:shorter]
        self.longest_answers[prompt] = max(known, tokens, key=len)

    def check_end(self):
        assert self.counts["finished"] + self.counts["cancelled"] == self.requests
        assert min(self.counts[each] for each in ("preempted", "cached", "cancelled")) > self.requests // 100, (
            self.counts
        )
        capacity = self.engine.capacity()
        assert not self.engine.has_work
        assert (capacity.blocks_free, capacity.slots_free) == (capacity.blocks, capacity.slots)
        assert capacity.blocks_promised == capacity.prefill_backlog_tokens == 0
