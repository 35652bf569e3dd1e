"""Compares texts generated in a batch with the same texts generated alone."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.proofs.engine.engine_bench import EngineBench
from penstock.worker.engine.interface import SamplingParams, SequenceSpec

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
