import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.engine.interface import SamplingParams
from penstock.worker.engine.sampling import sampler_torch
from penstock.worker.engine.sampling.draw import RowDraw
from penstock.worker.engine.sampling.gumbel import MAX_GUMBEL_NOISE, gumbel_noise, noise_key
from penstock.worker.engine.sampling.sampler import sample

VOCAB_SIZE = 600


def logits_of(rows, seed=0):
    return torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3


def draw_at(position, *, seed=7, prompt=None, **params):
    ids = [1] * position if prompt is None else prompt
    return RowDraw(SamplingParams(**params), seed, ids, len(ids))


def draws_of_many_positions(logits, count=4000, **params):
    rows = logits.expand(count, -1)
    tokens, _ = sample(rows, [draw_at(position, **params) for position in range(1, count + 1)])
    return Counter(tokens)


def test_temperature_zero_is_greedy():
    logits = logits_of(3)
    tokens, _ = sample(logits, [draw_at(4)] * 3)
    assert tokens == logits.argmax(-1).tolist()


def test_greedy_ties_go_to_the_lowest_id():
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [9, 40]] = 1.0
    assert sample(logits, [draw_at(1)])[0] == [9]


@given(st.integers(0, 2**64 - 1), st.integers(1, 30), st.integers(0, 5))
def test_a_draw_is_the_same_alone_and_in_any_batch(seed, position, place):
    logits = logits_of(6)
    mates = [draw_at(3, seed=mate, temperature=1.5, top_k=mate * 5) for mate in range(6)]
    own = draw_at(position, seed=seed, temperature=0.9, top_p=0.95)
    alone, _ = sample(logits[place : place + 1], [own])
    together, _ = sample(logits, [*mates[:place], own, *mates[place + 1 :]])
    assert together[place] == alone[0]


def test_draws_differ_by_seed_and_by_position():
    logits = torch.zeros(1, VOCAB_SIZE)
    tokens = {
        sample(logits, [draw_at(at, seed=seed, temperature=1.0)])[0][0] for at in range(1, 9) for seed in range(8)
    }
    assert len(tokens) > 50


def test_tokens_are_drawn_with_their_probabilities():
    logits = torch.full((1, VOCAB_SIZE), -30.0)
    logits[0, :3] = torch.tensor([0.5, 0.3, 0.2]).log()
    counts = draws_of_many_positions(logits, temperature=1.0)
    for token, probability in enumerate([0.5, 0.3, 0.2]):
        assert abs(counts[token] - 4000 * probability) < 4 * math.sqrt(4000 * probability)


def test_temperature_sharpens_and_flattens():
    logits = torch.full((1, VOCAB_SIZE), -30.0)
    logits[0, :2] = torch.tensor([1.0, 0.0])
    shares = [draws_of_many_positions(logits, temperature=each)[0] / 4000 for each in (0.5, 1.0, 2.0)]
    for share, temperature in zip(shares, (0.5, 1.0, 2.0), strict=True):
        assert share == pytest.approx(1 / (1 + math.exp(-1 / temperature)), abs=0.03)


def test_noise_is_gumbel_distributed():
    ids = np.arange(VOCAB_SIZE, dtype=np.uint32)
    noise = np.concatenate([gumbel_noise(noise_key(seed, 3), ids) for seed in range(200)])
    assert np.isfinite(noise).all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.std().item() == pytest.approx(math.pi / math.sqrt(6), abs=0.02)
    for level in (-1.0, 0.0, 1.0, 3.0):
        assert (noise < level).mean() == pytest.approx(math.exp(-math.exp(-level)), abs=0.005)


def test_noise_of_neighbouring_positions_and_seeds_is_unrelated():
    ids = np.arange(20_000, dtype=np.uint32)
    streams = np.stack([gumbel_noise(noise_key(seed, at), ids) for seed, at in [(0, 1), (0, 2), (1, 1), (1, 2)]])
    related = np.corrcoef(streams) - np.eye(4)
    assert np.abs(related).max() < 0.03


def test_top_k_keeps_the_likeliest():
    logits = logits_of(1)
    counts = draws_of_many_positions(logits, temperature=2.0, top_k=5)
    assert set(counts) == set(logits[0].topk(5).indices.tolist())


def test_top_p_keeps_the_least_number_of_tokens_that_reach_it():
    logits = torch.full((1, VOCAB_SIZE), -30.0)
    logits[0, 10:14] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert set(draws_of_many_positions(logits, count=500, temperature=1.0, top_p=0.65)) == {10, 11}
    assert set(draws_of_many_positions(logits, count=500, temperature=1.0, top_p=0.75)) == {10, 11, 12}
    assert set(draws_of_many_positions(logits, count=50, temperature=1.0, top_p=0.01)) == {10}


def test_top_p_counts_the_mass_left_by_top_k():
    logits = torch.full((1, VOCAB_SIZE), -30.0)
    logits[0, 10:14] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert set(draws_of_many_positions(logits, count=500, temperature=1.0, top_k=2, top_p=0.5)) == {10}


def test_top_p_over_a_flat_distribution_keeps_many_tokens():
    logits = torch.linspace(0.0, 1e-3, VOCAB_SIZE)[None]
    counts = draws_of_many_positions(logits, temperature=1.0, top_p=0.5)
    assert min(counts) >= VOCAB_SIZE // 2 - 5
    assert len(counts) > 250


def test_min_p_cuts_below_a_share_of_the_best():
    logits = torch.full((1, VOCAB_SIZE), -30.0)
    logits[0, :3] = torch.tensor([0.6, 0.3, 0.1]).log()
    assert set(draws_of_many_positions(logits, count=500, temperature=1.0, min_p=0.2)) == {0, 1}


def test_penalties_count_the_output_alone_and_repetition_counts_the_prompt_too():
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, :4] = torch.tensor([5.0, 4.8, 4.6, 4.4])
    ids = [0, 1, 1]  # prompt: 0; output: 1, 1

    def token(**params):
        return sample(logits, [RowDraw(SamplingParams(**params), 0, ids, 1)])[0][0]

    assert token() == 0
    assert token(presence_penalty=2.0) == 0
    assert token(repetition_penalty=1.1) == 2
    assert token(presence_penalty=-0.3) == 1
    assert token(frequency_penalty=-0.15) == 1


def test_frequency_penalty_grows_with_each_occurrence():
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, :2] = torch.tensor([5.0, 4.0])
    tokens = [
        sample(logits, [RowDraw(SamplingParams(frequency_penalty=0.4), 0, [9, *[0] * times], 1)])[0][0]
        for times in (2, 3)
    ]
    assert tokens == [0, 1]


def test_a_bias_of_100_forces_a_token_and_one_of_minus_100_bans_it_at_any_temperature():
    logits = logits_of(1)
    best, worst = int(logits.argmax()), int(logits.argmin())
    assert set(draws_of_many_positions(logits, count=500, temperature=2.0, logit_bias=((worst, 100.0),))) == {worst}
    counts = draws_of_many_positions(logits, count=2000, temperature=0.1, logit_bias=((best, -100.0),))
    assert draws_of_many_positions(logits, count=2000, temperature=0.1)[best]
    assert not counts[best]


def test_a_bias_moves_one_token():
    logits = torch.zeros(2, VOCAB_SIZE)
    tokens, _ = sample(logits, [draw_at(1, logit_bias=((33, 1.0),)), draw_at(1)])
    assert tokens == [33, 0]


def test_logprobs_are_the_models_own_and_only_on_request():
    logits = logits_of(2)
    before = logits.clone()
    tokens, logprobs = sample(logits, [draw_at(1, logprobs=True, logit_bias=((5, 90.0),)), draw_at(1)])
    assert tokens[0] == 5
    assert logprobs == [pytest.approx(logits[0].log_softmax(-1)[5].item(), abs=1e-5), 0.0]
    assert torch.equal(logits, before)


def test_no_noise_exceeds_the_samplers_bound():
    largest = np.float32(2**23 - 0.5) * np.float32(2.0**-23)
    assert 0 < MAX_GUMBEL_NOISE + np.log(-np.log(largest)) < 0.1


@given(st.integers(0, 2**64 - 1), st.integers(1, 30), st.sampled_from([0.05, 0.7, 1.0, 2.0]))
def test_omitting_tokens_that_cannot_win_never_changes_the_winner(seed, position, temperature):
    scores = logits_of(1, seed=position) / np.float32(temperature)
    noise = gumbel_noise(noise_key(seed, position), np.arange(VOCAB_SIZE, dtype=np.uint32))
    token = sample(logits_of(1, seed=position), [draw_at(position, seed=seed, temperature=temperature)])[0]
    assert token == [int((scores[0].numpy() + noise).argmax())]


params = st.builds(
    dict,
    temperature=st.sampled_from([0.0, 1e-30, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 7, VOCAB_SIZE, 1024]),
    top_p=st.sampled_from([0.1, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    logprobs=st.booleans(),
)


@given(st.lists(params, min_size=1, max_size=5), st.integers(0, 99))
def test_a_batch_draws_the_same_tokens_as_single_rows(rows, seed):
    logits = logits_of(len(rows), seed)
    draws = [draw_at(3, seed=seed + row, **each) for row, each in enumerate(rows)]
    tokens, logprobs = sample(logits, draws)
    together = sampler_torch.sample_batch(logits, draws)
    assert together == (tokens, pytest.approx(logprobs, abs=1e-4))


def test_equal_scores_at_the_border_of_top_k_go_to_the_lower_ids():
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [40, 90, 300]] = 1.0
    assert set(draws_of_many_positions(logits, count=200, temperature=1.0, top_k=2)) == {40, 90}


def test_logits_that_are_no_numbers_still_give_a_token():
    logits = torch.full((3, VOCAB_SIZE), torch.nan)
    tokens, _ = sample(logits, [draw_at(1), draw_at(1, temperature=1.0), draw_at(1, temperature=1.0, top_p=0.9)])
    assert all(0 <= token < VOCAB_SIZE for token in tokens)
