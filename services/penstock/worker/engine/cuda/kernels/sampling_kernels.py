"""Sampling, in Triton: penalties and masks of each row, and the draw of its token.

Truncation keeps the same tokens as `sampling.draw`, without sorting: it searches for the least score that is kept. Each
pass over the row sums what lies above several candidates, and the interval between two of them is the next to search.
The order-preserving integers of float32 make the search end at an exact score. Ties at that score are kept by id.

Source: Sun and others 2025 (FlashInfer, sorting-free sampling) for the idea of sampling without a sort.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def adjust_kernel(
    logits, scores, counts, count_rows, penalties, masks, mask_rows,
    VOCAB: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A part of one row: penalties, and minus infinity for ids that the row's mask forbids.

    counts: see `TokenCounts`. count_rows, mask_rows: -1 if the row has none. penalties: [rows, 3] float64: repetition,
    presence, frequency.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = at < VOCAB
    score = tl.load(logits + row * VOCAB + at, mask=inside, other=0.0)
    count_row = tl.load(count_rows + row).to(tl.int64)
    if count_row >= 0:
        count = tl.load(counts + count_row * VOCAB + at, mask=inside, other=0)
        repetition = tl.load(penalties + row * 3).to(tl.float32)
        presence, frequency = tl.load(penalties + row * 3 + 1), tl.load(penalties + row * 3 + 2)
        repeated = tl.where(score > 0, tl.math.div_rn(score, score * 0 + repetition), score * repetition)
        score = tl.where(count > 0, repeated, score)
        output = count >> 1
        # In float64, as on a CPU, so that the difference is rounded once.
        penalty = (presence + frequency * output.to(tl.float64)).to(tl.float32)
        score -= tl.where(output > 0, penalty, 0.0)
    mask_row = tl.load(mask_rows + row).to(tl.int64)
    if mask_row >= 0:
        allowed = tl.load(masks + mask_row * VOCAB + at, mask=inside, other=0)
        score = tl.where(allowed != 0, score, -float("inf"))
    tl.store(scores + row * VOCAB + at, score, mask=inside)


@triton.jit
def _load(scores, at, VOCAB: tl.constexpr):
    """Scores, with minus infinity for NaN and beyond the vocabulary."""
    x = tl.load(scores + at, mask=at < VOCAB, other=-float("inf"))
    return tl.where(x == x, x + 0.0, -float("inf"))  # noqa: PLR0124 - false for NaN; 0.0 turns -0.0 into 0.0


@triton.jit
def _to_key(x):
    """Integers in the order of the scores."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _from_key(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _least_kept(
    scores, low, high, target, best, scale,
    WEIGHTED: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr, CUTS: tl.constexpr,
):  # fmt: skip
    """Return the least key in (low, high] above which there is less than `target`, and the sum above it.

    The sum is of weights, 2 ** ((score - best) * scale), or of tokens. There is `target` or more above `low`, and
    nothing above `high`. Each pass makes the interval CUTS + 1 times as short.
    """
    above = 0.0
    cut = tl.arange(0, CUTS).to(tl.int64) + 1
    while high - low > 1:
        keys = tl.minimum(low + (high - low + CUTS) // (CUTS + 1) * cut, high - 1)
        sums = tl.zeros([CUTS], tl.float32)
        for first in range(0, VOCAB, BLOCK):
            x = _load(scores, first + tl.arange(0, BLOCK), VOCAB)
            weights = tl.exp2((x - best) * scale) if WEIGHTED else tl.full([BLOCK], 1.0, tl.float32)
            is_above = _to_key(x)[None, :] > keys.to(tl.int32)[:, None]
            sums += tl.sum(tl.where(is_above, weights[None, :], 0.0), 1)
        is_below = sums < target
        low = tl.max(tl.where(is_below, low, keys), 0)
        new_high = tl.min(tl.where(is_below, keys, high), 0)
        above = tl.where(new_high < high, tl.max(tl.where(keys == new_high, sums, 0.0), 0), above)
        high = new_high
    return high.to(tl.int32), above


@triton.jit
def _mix(x):
    """`sampling.gumbel._mix`."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _gumbel_noise(at, low, high):
    """`sampling.gumbel.gumbel_noise` of the key with these halves."""
    bits = _mix(_mix(at.to(tl.uint32) ^ low) + high)
    uniform = ((bits >> 9).to(tl.float32) + 0.5) * (2.0**-23)
    return -tl.log(-tl.log(uniform))


@triton.jit
def _logprob(logits, token, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    best, total = -float("inf"), 0.0
    for first in range(0, VOCAB, BLOCK):
        x = _load(logits, first + tl.arange(0, BLOCK), VOCAB)
        new_best = tl.maximum(best, tl.max(x, 0))
        total = total * tl.exp(best - new_best) + tl.sum(tl.exp(x - new_best), 0)
        best = new_best
    return tl.load(logits + token) - best - tl.log(total)


@triton.jit
def _truncate(
    scores, best, least, temperature, top_k, top_p,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, CUTS: tl.constexpr,
):  # fmt: skip
    """Top-k, then top-p of the mass that is left: return a key, above which all tokens are kept, and the number of
    tokens with that key which are kept, those of the lowest ids.
    """
    scale = LOG2_E / temperature
    high = _to_key(best).to(tl.int64)
    kept_key, kept_ties = _to_key(least) - 1, 0
    if (top_k > 0) & (top_k < VOCAB):
        kept_key, count = _least_kept(
            scores, kept_key.to(tl.int64), high, top_k.to(tl.float32), best, scale, False, VOCAB, BLOCK, CUTS
        )
        kept_ties = top_k - count.to(tl.int32)
    if top_p < 1.0:
        tied = tl.where(kept_ties > 0, _from_key(kept_key), best)  # without ties the key may be that of no number
        total = tl.exp2((tied - best) * scale) * kept_ties
        for first in range(0, VOCAB, BLOCK):
            x = _load(scores, first + tl.arange(0, BLOCK), VOCAB)
            total += tl.sum(tl.where(_to_key(x) > kept_key, tl.exp2((x - best) * scale), 0.0), 0)
        # All tokens below this share have less than 1 - top_p together, so no token of the nucleus is below it.
        share = tl.log2(total * (1.0 - top_p) / VOCAB) - 1.0
        low = tl.maximum(_to_key(best + share / scale), kept_key).to(tl.int64) - 1
        target = top_p * total
        key, above = _least_kept(
            scores, tl.minimum(low, high - 1), high, target, best, scale, True, VOCAB, BLOCK, CUTS
        )  # fmt: skip
        ties = tl.ceil((target - above) / tl.exp2((_from_key(key) - best) * scale))
        ties = tl.minimum(tl.maximum(ties, 1.0), VOCAB).to(tl.int32)
        kept_ties = tl.where(key == kept_key, tl.minimum(ties, kept_ties), ties)
        kept_key = key
    return kept_key, kept_ties


@triton.jit
def _draw(
    scores, word, best, least, temperature,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, CUTS: tl.constexpr,
):  # fmt: skip
    """Return the kept token with the largest sum of score and noise."""
    top_k, top_p = tl.load(word + 2), tl.load(word + 5).to(tl.float32, bitcast=True)
    kept_key, kept_ties = _truncate(scores, best, least, temperature, top_k, top_p, VOCAB, BLOCK, CUTS)
    least_score = tl.math.div_rn(best, temperature) + tl.load(word + 6).to(tl.float32, bitcast=True)
    low, high = tl.load(word).to(tl.uint32, bitcast=True), tl.load(word + 1).to(tl.uint32, bitcast=True)
    most, token, ties_before = -float("inf"), 0, 0
    for first in range(0, VOCAB, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = _load(scores, at, VOCAB)
        key = _to_key(x)
        is_tie = (key == kept_key).to(tl.int32)
        rank = ties_before + tl.cumsum(is_tie, 0)
        ties_before += tl.sum(is_tie, 0)
        score = tl.math.div_rn(x, tl.zeros([BLOCK], tl.float32) + temperature)
        is_kept = ((key > kept_key) | ((is_tie != 0) & (rank <= kept_ties))) & (score >= least_score)
        score = tl.where(is_kept & (at < VOCAB), score + _gumbel_noise(at, low, high), -float("inf"))
        top = tl.max(score, 0)
        token = tl.where(top > most, tl.min(tl.where(score == top, at, VOCAB), 0), token)
        most = tl.maximum(most, top)
    return token


@triton.jit
def draw_kernel(
    logits, scores, words, out, rows,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, CUTS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """One row: its token, and the logarithm of its probability by `logits` if requested, else 0.

    words: [rows, WORDS] int32, see `sampler`. out: [2, rows] int32: tokens, then the bits of logprobs.
    """
    row = tl.program_id(0).to(tl.int64)
    word = words + row * WORDS
    own = scores + row * VOCAB
    best, least, token = -float("inf"), float("inf"), 0
    for first in range(0, VOCAB, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = _load(own, at, VOCAB)
        top = tl.max(x, 0)
        token = tl.where(top > best, tl.min(tl.where(x == top, at, VOCAB), 0), token)
        best = tl.maximum(best, top)
        least = tl.minimum(least, tl.min(tl.where(at < VOCAB, x, float("inf")), 0))
    temperature = tl.load(word + 4).to(tl.float32, bitcast=True)
    if (temperature > 0) & (best > -float("inf")) & (best < float("inf")):
        token = _draw(own, word, best, least, temperature, VOCAB, BLOCK, CUTS)
    tl.store(out + row, token)
    logprob = tl.full([], 0.0, tl.float32)
    if tl.load(word + 3) != 0:
        logprob = _logprob(logits + row * VOCAB, token, VOCAB, BLOCK)
    tl.store(out + rows + row, logprob.to(tl.int32, bitcast=True))
