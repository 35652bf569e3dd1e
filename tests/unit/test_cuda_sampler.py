"""The sampler of our kernels against the sampler for CPUs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_device import DEVICE
from penstock.worker.engine.cuda import sampler as cuda_sampler
from penstock.worker.engine.cuda.sampler import CudaSampler
from penstock.worker.engine.interface import SamplingParams
from penstock.worker.engine.sampling.draw import RowDraw
from penstock.worker.engine.sampling.sampler import sample

VOCAB_SIZE = 600


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks to a row, the last one not full."""
    monkeypatch.setattr(cuda_sampler, "BLOCK", 256)


def logits_of(rows, seed=0, *, steps=None):
    """`steps`: scores are multiples of 1 / steps, so that many are equal, as in bfloat16."""
    logits = torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3
    return logits if steps is None else (logits * steps).round() / steps


def draw_of(ids=(1, 2, 3), *, seed=7, prompt=None, allowed=None, **params):
    return RowDraw(SamplingParams(**params), seed, list(ids), len(ids) if prompt is None else prompt, allowed)


def sampler_of(slots=8, vocab_size=VOCAB_SIZE):
    return CudaSampler(slots, vocab_size, DEVICE)


def drawn(logits, draws, sampler=None):
    return (sampler or sampler_of(len(draws))).sample(logits.contiguous().to(DEVICE), draws)


params = st.builds(
    dict,
    temperature=st.sampled_from([0.0, 1e-30, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 7, VOCAB_SIZE - 1, VOCAB_SIZE, 1024]),
    top_p=st.sampled_from([0.01, 0.1, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    repetition_penalty=st.sampled_from([0.0, 1.0, 1.3]),
    logit_bias=st.sampled_from([(), ((3, 4.0), (9, -2.5))]),
    allowed=st.sampled_from([None, [5], [2, 3, 599]]),
    logprobs=st.booleans(),
)


@settings(max_examples=12, deadline=None)
@given(st.lists(params, min_size=1, max_size=2), st.integers(0, 99), st.sampled_from([None, 2]))
def test_tokens_and_logprobs_equal_those_of_the_cpu(rows, seed, steps):
    logits = logits_of(len(rows), seed, steps=steps)
    draws = [draw_of(seed=seed + row, prompt=1, **each) for row, each in enumerate(rows)]
    tokens, logprobs = sample(logits, draws)
    assert drawn(logits, draws) == (tokens, pytest.approx(logprobs, abs=1e-4))


def test_a_draw_is_the_same_alone_and_in_a_batch():
    logits = logits_of(3)
    own = draw_of(temperature=0.9, top_p=0.95, frequency_penalty=0.3)
    mates = [draw_of(seed=1, temperature=1.5, top_k=5, allowed=[7, 8]), draw_of(seed=2, logprobs=True)]
    alone = drawn(logits[1:2], [own])[0]
    assert drawn(logits, [mates[0], own, mates[1]])[0][1] == alone[0]


def kept_tokens(logits, draw, count=16):
    """The tokens that are drawn at many positions, which are those left by truncation if these are few."""
    draws = [draw._replace(ids=[1] * position) for position in range(1, count + 1)]
    return set(drawn(logits.expand(count, -1), draws)[0])


@pytest.mark.parametrize("options", [{"top_k": 2}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.6}], ids=str)
def test_equal_scores_at_the_border_go_to_the_lower_ids(options):
    logits = torch.full((1, VOCAB_SIZE), -30.0)
    logits[0, [40, 90, 300, 599]] = 1.0
    assert kept_tokens(logits, draw_of(temperature=1.0, **options)) == {40, 90}


def test_a_flat_distribution_keeps_its_share():
    """A search by score alone could not divide equal scores."""
    tokens = kept_tokens(torch.zeros(1, VOCAB_SIZE), draw_of(temperature=1.0, top_p=0.05), count=40)
    assert 20 < max(tokens) < math.ceil(0.05 * VOCAB_SIZE)


def test_top_p_counts_the_mass_left_by_top_k():
    logits = torch.full((1, VOCAB_SIZE), -30.0)
    logits[0, 10:14] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert kept_tokens(logits, draw_of(temperature=1.0, top_k=2, top_p=0.5)) == {10}
    assert kept_tokens(logits, draw_of(temperature=1.0, top_p=0.75)) == {10, 11, 12}


@pytest.mark.parametrize(
    "penalties",
    [{"frequency_penalty": 0.37}, {"presence_penalty": -0.9}, {"repetition_penalty": 1.7}],
    ids=lambda each: next(iter(each)),
)
def test_penalised_texts_equal_those_of_the_cpu_token_by_token(penalties):
    """Counts are kept from step to step, for sequences that join, leave and are computed in turns."""
    ours, theirs = ([[5, 5, 9], [9, 2], [7] * 20] for _ in range(2))
    sampler = sampler_of(slots=2)
    for step in range(14):
        logits = logits_of(1, step, steps=2).repeat(2, 1)
        rows = [(step + place) % 3 for place in range(2)]
        for texts, draw_tokens in ((ours, sampler.sample), (theirs, sample)):
            draws = [
                RowDraw(SamplingParams(temperature=0.2, **penalties), row, texts[row], (2, 1, 3)[row]) for row in rows
            ]
            own = logits.to(DEVICE) if draw_tokens == sampler.sample else logits
            for row, token in zip(rows, draw_tokens(own, draws)[0], strict=True):
                texts[row].append(token)
    assert ours == theirs


def test_a_step_sends_the_new_tokens_of_penalised_sequences_alone():
    sampler = sampler_of(slots=2)
    ids = [1] * 500
    draw = RowDraw(SamplingParams(frequency_penalty=1.0), 0, ids, 100)
    drawn(logits_of(1), [draw], sampler)
    sent = []
    counts = sampler._token_counts
    to_device = counts._to_device
    counts._to_device = lambda values: sent.append(len(values)) or to_device(values)
    ids.append(4)
    drawn(logits_of(1), [draw], sampler)
    assert sent == [2]  # a place and an amount
    assert counts.counts.sum(0)[[1, 4]].tolist() == [800, 2]


def test_nothing_is_sorted_and_no_more_than_one_copy_of_the_logits_is_made():
    """The memory of a step with every option, which a sort would multiply."""
    logits = logits_of(8)
    options = {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "frequency_penalty": 0.5, "logprobs": True}
    draws = [draw_of(seed=row, **options) for row in range(8)]
    sampler = sampler_of(8)
    with RecordedOperations() as operations:
        drawn(logits, draws, sampler)
    assert not {"sort", "topk", "cumsum"} & set(operations.names)
    assert operations.bytes_made < 1.5 * logits.nbytes


class RecordedOperations(torch.utils._python_dispatch.TorchDispatchMode):
    """The torch operations of a block, and the bytes of the tensors that they allocated."""

    def __init__(self):
        super().__init__()
        self.names, self.bytes_made = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.names.append(func.overloadpacket.__name__)
        known = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in known:
            self.bytes_made += result.untyped_storage().nbytes()
        return result


def test_logits_that_are_no_numbers_still_give_a_token():
    logits = torch.full((3, VOCAB_SIZE), torch.nan)
    draws = [draw_of(), draw_of(temperature=1.0), draw_of(temperature=1.0, top_p=0.9, top_k=4)]
    assert all(0 <= token < VOCAB_SIZE for token in drawn(logits, draws)[0])


def test_infinite_scores_are_drawn_from_the_finite_ones():
    logits = torch.full((1, VOCAB_SIZE), -torch.inf)
    logits[0, [4, 500]] = torch.tensor([1.0, 0.5])
    assert kept_tokens(logits, draw_of(temperature=1.0, top_k=9, top_p=0.99)) == {4, 500}


@pytest.mark.parametrize("vocab_size", [1, 2, 256, 257])
def test_any_size_of_vocabulary_is_covered(vocab_size):
    logits = logits_of(1, 3)[:, :vocab_size].contiguous()
    draws = [draw_of(temperature=1.0, top_p=0.8, logprobs=True)]
    tokens, logprobs = sample(logits, draws)
    assert drawn(logits, draws, sampler_of(1, vocab_size)) == (tokens, pytest.approx(logprobs, abs=1e-5))


def test_numpy_and_the_kernel_agree_on_the_noise():
    """Without truncation a token is the argmax of score and noise, so equal tokens of flat scores need equal noise."""
    draws = [draw_of([1] * at, seed=3, temperature=1.0) for at in range(1, 60)]
    logits = torch.zeros(len(draws), VOCAB_SIZE)
    assert np.array_equal(drawn(logits, draws)[0], sample(logits, draws)[0])
