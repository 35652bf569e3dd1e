"""Two proofs of batching: texts do not depend on batch mates, and no KV block is lost under stress.

The stress sends thousands of requests, some cancelled, through one batch with a sixth of the KV blocks that its slots
need. Its engine may be the simulated one, which proves the batch, or a real one, which proves its computation as well.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from penstock.proofs.engine.engine_bench import EngineBench
from penstock.worker.engine.interface import Engine, SamplingParams, SequenceSpec, StepResult

TEXTS_PER_KIND = 6  # greedy, and as many sampled
OTHER_REQUESTS = 20  # in the same batch
MAX_OUTPUT_TOKENS = 24
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95)


@dataclass(frozen=True, slots=True)
class TextComparison:
    greedy: int  # tokens compared
    greedy_different: int
    sampled: int
    sampled_different: int


def compare_texts(bench: EngineBench, seed: int, report_progress: Callable[[str], None]) -> TextComparison:
    rng = random.Random(seed)
    greedy = [_spec(bench, rng, number, SamplingParams()) for number in range(TEXTS_PER_KIND)]
    sampled = [_spec(bench, rng, TEXTS_PER_KIND + number, SAMPLED) for number in range(TEXTS_PER_KIND)]
    others = [
        _spec(bench, rng, 2 * TEXTS_PER_KIND + number, rng.choice([SamplingParams(), SAMPLED]))
        for number in range(OTHER_REQUESTS)
    ]
    report_progress("texts in a batch with others")
    batched = bench.generate(rng.sample(greedy + sampled + others, 2 * TEXTS_PER_KIND + OTHER_REQUESTS))
    report_progress("greedy texts, each token by a full recompute")
    recomputed = {spec.seq_id: recompute(bench, spec) for spec in greedy}
    report_progress("sampled texts alone")
    alone = {spec.seq_id: bench.generate([spec])[spec.seq_id] for spec in sampled}
    return TextComparison(
        greedy=sum(map(len, recomputed.values())),
        greedy_different=sum(count_differences(batched[seq_id], text) for seq_id, text in recomputed.items()),
        sampled=sum(map(len, alone.values())),
        sampled_different=sum(count_differences(batched[seq_id], text) for seq_id, text in alone.items()),
    )


def recompute(bench: EngineBench, spec: SequenceSpec) -> list[int]:
    """Generate without a KV cache: prefill prompt and output for every token."""
    text: list[int] = []
    while len(text) < spec.max_output_tokens:
        again = replace(spec, token_ids=[*spec.token_ids, *text], emitted=len(text), max_output_tokens=1)
        text += bench.generate([again])[spec.seq_id]
    return text


def count_differences(text: list[int], expected: list[int]) -> int:
    """Return the number of tokens that differ, including missing and superfluous ones."""
    return sum(a != b for a, b in zip(text, expected, strict=False)) + abs(len(text) - len(expected))


def _spec(bench: EngineBench, rng: random.Random, number: int, sampling: SamplingParams) -> SequenceSpec:
    return SequenceSpec(
        seq_id=number,
        token_ids=rng.choices(bench.token_ids, k=rng.randint(8, 64)),
        max_output_tokens=MAX_OUTPUT_TOKENS,
        ignore_eos=True,
        sampling=sampling,
        seed=rng.getrandbits(32),
        cache_salt=b"shared",
    )


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
        self.counts["preempted"] += len(result.preempted)
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
