"""Whether batching, caching and company change a text: each is held against the same tokens computed apart."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.proofs.engine.bench import Bench
from penstock.worker.engine.interface import SamplingParams, SequenceSpec

TEXTS = 6  # of each kind
STRANGERS = 20  # others in the crowd
TOKENS = 24
DRAWN = SamplingParams(temperature=0.9, top_p=0.95)


@dataclass(frozen=True, slots=True)
class Texts:
    greedy: int  # tokens compared
    greedy_different: int
    drawn: int
    drawn_different: int


def compare_texts(bench: Bench, seed: int, say: Callable[[str], None]) -> Texts:
    rng = random.Random(seed)
    greedy = [_spec(bench, rng, number, SamplingParams()) for number in range(TEXTS)]
    drawn = [_spec(bench, rng, TEXTS + number, DRAWN) for number in range(TEXTS)]
    strangers = [
        _spec(bench, rng, 2 * TEXTS + number, rng.choice([SamplingParams(), DRAWN])) for number in range(STRANGERS)
    ]
    say("texts in a crowd")
    crowd = bench.texts(rng.sample(greedy + drawn + strangers, 2 * TEXTS + STRANGERS))
    say("greedy texts, the whole sequence computed anew for each token")
    recomputed = {spec.seq_id: recompute(bench, spec) for spec in greedy}
    say("drawn texts alone")
    alone = {spec.seq_id: bench.texts([spec])[spec.seq_id] for spec in drawn}
    return Texts(
        greedy=sum(map(len, recomputed.values())),
        greedy_different=sum(different(crowd[seq_id], text) for seq_id, text in recomputed.items()),
        drawn=sum(map(len, alone.values())),
        drawn_different=sum(different(crowd[seq_id], text) for seq_id, text in alone.items()),
    )


def recompute(bench: Bench, spec: SequenceSpec) -> list[int]:
    """The naive loop: prompt and output prefilled from nothing for every token, by itself."""
    text: list[int] = []
    while len(text) < spec.max_output_tokens:
        again = replace(spec, token_ids=[*spec.token_ids, *text], emitted=len(text), max_output_tokens=1)
        text += bench.texts([again])[spec.seq_id]
    return text


def different(text: list[int], wanted: list[int]) -> int:
    """Tokens that are not what was wanted, missing and superfluous ones among them."""
    return sum(a != b for a, b in zip(text, wanted, strict=False)) + abs(len(text) - len(wanted))


def _spec(bench: Bench, rng: random.Random, number: int, sampling: SamplingParams) -> SequenceSpec:
    return SequenceSpec(
        seq_id=number,
        token_ids=rng.choices(bench.ids, k=rng.randint(8, 64)),
        max_output_tokens=TOKENS,
        ignore_eos=True,
        sampling=sampling,
        seed=rng.getrandbits(32),
        cache_salt=b"shared",
    )
