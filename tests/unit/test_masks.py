import pytest
import torch

from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.errors import StartInvalid
from penstock.worker.engine.batching.masks import build_mask
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.interface import AllowedChoices, AllowedTokens, FinishReason, SamplingParams, SequenceSpec
from penstock.worker.engine.sampling.draw import RowDraw
from penstock.worker.engine.sampling.sampler import sample

END_ID = 2
CHOICES = AllowedChoices(((10, 11), (10, 11, 12), (20,)))


def batch_with(form, **fields):
    batch = Batch(
        pool=BlockPool(8, 4),
        policy=ContinuousBatching(token_budget=16),
        slots=2,
        context_length=32,
        eos_ids=frozenset({END_ID}),
    )
    batch.add(SequenceSpec(seq_id=1, max_output_tokens=8, constraint=form, **({"token_ids": [1, 2, 3]} | fields)))
    return batch


@pytest.mark.parametrize(
    ("output", "following"),
    [
        ([], [10, 20]),
        ([10], [11]),
        ([10, 11], [END_ID, 12]),
        ([10, 11, 12], [END_ID]),
        ([20], [END_ID]),
        ([99], [END_ID]),
    ],
)
def test_a_choice_is_followed_token_by_token_to_its_end(output, following):
    assert build_mask(CHOICES, frozenset({END_ID})).allowed(output) == following


def test_allowed_tokens_stay_the_same_and_an_end_is_among_them():
    mask = build_mask(AllowedTokens(frozenset({7, 5})), frozenset({END_ID}))
    assert mask.allowed([]) == mask.allowed([5, 5, 7]) == [END_ID, 5, 7]


def test_a_run_keeps_its_constraint_until_an_end_id():
    batch, seen = batch_with(CHOICES), []
    while batch.has_work:
        plan = batch.plan()
        seen.append(plan.sampled[0].allowed)
        result = batch.commit(plan, [seen[-1][-1]], [0.0])
    assert seen == [[10, 20], [END_ID]]
    assert result.finished[0].reason is FinishReason.STOP


def test_a_resumed_run_continues_within_its_choice():
    batch = batch_with(CHOICES, token_ids=[1, 2, 3, 10, 11], emitted=2)
    assert batch.plan().sampled[0].allowed == [END_ID, 12]


def test_without_a_constraint_all_ids_are_allowed():
    assert batch_with(None).plan().sampled[0].allowed is None


@pytest.mark.parametrize("form", [AllowedChoices(()), AllowedChoices(((1,), ())), AllowedTokens(frozenset()), "json"])
def test_a_constraint_that_no_output_satisfies_is_rejected(form):
    with pytest.raises(StartInvalid):
        batch_with(form)


def test_a_choice_without_an_end_id_is_rejected():
    with pytest.raises(StartInvalid, match="end ids"):
        batch_with(CHOICES, ignore_eos=True)
    assert batch_with(CHOICES, ignore_eos=True, stop_ids=frozenset({4})).plan().sampled[0].allowed == [10, 20]


def drawn(logits, allowed, **params):
    draws = [RowDraw(SamplingParams(**params), seed, [1, 2], 1, allowed) for seed in range(len(logits))]
    return sample(logits, draws)


def test_a_mask_binds_greedy_and_drawn_tokens_alike_and_biases_cannot_lift_it():
    logits = torch.zeros(50, 100)
    logits[:, 9], logits[:, 7] = 50.0, 1.0
    assert set(drawn(logits, [3, 7])[0]) == {7}
    assert set(drawn(logits, [3, 7], logit_bias=((9, 100.0), (3, 5.0)))[0]) == {3}
    for params in ({}, {"top_k": 40}, {"top_p": 0.99}, {"min_p": 0.01}):
        assert set(drawn(logits, [3, 7], temperature=1.0, **params)[0]) == {3, 7}
    assert set(drawn(logits, [3, 7], temperature=1.0, top_k=1)[0]) == {7}


def test_logprobs_of_a_masked_token_are_still_the_models_own():
    logits = torch.zeros(1, 100)
    logits[0, 9] = 5.0
    tokens, logprobs = drawn(logits, [3], logprobs=True)
    assert tokens == [3]
    assert logprobs == [pytest.approx(logits[0].log_softmax(-1)[3].item(), abs=1e-5)]
