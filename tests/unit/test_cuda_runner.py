"""The CUDA forward pass: the logits of plain torch in any batch, and on a GPU the same from a graph."""

import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch

from cuda_device import DEVICE, DTYPES, NEEDS_GPU
from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.cuda.runner import CudaRunner
from penstock.worker.engine.cuda.sampler import CudaSampler
from penstock.worker.engine.interface import SamplingParams, SequenceSpec
from penstock.worker.engine.sampling.draw import RowDraw
from penstock.worker.engine.sampling.sampler import sample as cpu_sample
from penstock.worker.engine.torch.engine import TorchEngine, TorchRunner
from penstock.worker.engine.torch.model import Model
from random_models import KV_BLOCKS, SHAPE, logits_of, random_text, random_weights

SLOT_COUNT = 8
SMALL_SHAPE = replace(SHAPE, context_length=200)


def weights_of(dtype, **options):
    weights = random_weights(SMALL_SHAPE, dtype, **options)
    for layer in weights.layers:
        for name in layer.__slots__:
            value = getattr(layer, name)
            setattr(layer, name, value if value is None else value.to(DEVICE))
    is_tied = weights.head is weights.embedding
    weights.embedding, weights.norm = weights.embedding.to(DEVICE), weights.norm.to(DEVICE)
    weights.head = weights.embedding if is_tied else weights.head.to(DEVICE)
    return weights


@torch.inference_mode()
def runner_of(dtype, *, max_mixed_rows=0, **options):
    """By default steps with prefills are not padded, because the interpreter takes its time for each padding row."""
    weights = weights_of(dtype, **options)
    return CudaRunner(SMALL_SHAPE, weights, KV_BLOCKS, 16, SLOT_COUNT, max_mixed_rows=max_mixed_rows)


def plain_of(dtype, **options):
    return TorchRunner(Model(SMALL_SHAPE, weights_of(dtype, **options)), KV_BLOCKS, 16)


@pytest.mark.parametrize("extras", [False, True], ids=["llama", "qwen"])
def test_float32_logits_equal_those_of_plain_torch(extras):
    texts = [random_text(3), random_text(20, 2), random_text(134, 3)]
    plain, ours = (
        logits_of(make(torch.float32, extras=extras), texts, budget=60, prompt_share=0.95)
        for make in (plain_of, runner_of)
    )
    assert plain.keys() == ours.keys()
    for place, row in plain.items():
        torch.testing.assert_close(ours[place], row, rtol=1e-3, atol=2e-3)


def test_bfloat16_logits_are_as_close_to_float32_as_those_of_plain_torch():
    texts = [random_text(150)]
    exact = logits_of(plain_of(torch.float32), texts, prompt_share=0.95)

    def error(runner):
        logits = logits_of(runner, texts, prompt_share=0.95)
        return max(float((logits[place] - exact[place]).norm() / exact[place].norm()) for place in exact)

    assert error(runner_of(torch.bfloat16)) < max(1.5 * error(plain_of(torch.bfloat16)), 0.02)


def run_out(runner, seq_ids):
    """Text of each sequence, and how often one was preempted, with room for three blocks."""
    batch = Batch(pool=BlockPool(3, 16), policy=ContinuousBatching(token_budget=24), slots=2, context_length=200)
    # The kernels' runner draws with the kernels' sampler, as it does when it is built.
    sampler = CudaSampler(2, SMALL_SHAPE.vocab_size, DEVICE).sample if isinstance(runner, CudaRunner) else cpu_sample
    engine = TorchEngine(runner, batch, sampler)
    for seq_id in seq_ids:
        engine.add(SequenceSpec(seq_id=seq_id, token_ids=random_text(14, seq_id + 5), max_output_tokens=5))
    texts, preempted = {seq_id: [] for seq_id in seq_ids}, 0
    while engine.has_work:
        result = engine.step()
        preempted += len(result.preempted)
        for seq_id, token in zip(result.seq_ids, result.tokens, strict=True):
            texts[seq_id].append(token)
    return texts, preempted


def test_the_text_of_a_preempted_sequence_equals_that_of_plain_torch():
    made, preempted = run_out(runner_of(torch.float32), [0, 1])
    assert preempted > 0
    plain = plain_of(torch.float32)
    assert made == {**run_out(plain, [0])[0], **run_out(plain, [1])[0]}


class OneStep:
    """A decode step of `count` sequences, ready to be computed over and over."""

    def __init__(self, runner, count):
        batch = Batch(
            pool=BlockPool(KV_BLOCKS, 16), policy=ContinuousBatching(512), slots=SLOT_COUNT, context_length=200
        )
        for seq_id in range(count):
            batch.add(SequenceSpec(seq_id=seq_id, token_ids=random_text(20 + seq_id), max_output_tokens=4))
        plan = batch.plan()
        runner.forward(plan)
        batch.commit(plan, [1] * count, [0.0] * count)
        self.plan = batch.plan()
        assert len(self.plan.decodes) == count


def test_steps_with_prefills_equal_plain_torch_in_and_beyond_the_largest_graph():
    """Steps of up to 64 rows are padded to 64, with room for more decodes and chunks than they have."""
    texts = [random_text(12), random_text(5, 2), random_text(90, 3)]
    make = partial(runner_of, max_mixed_rows=64)
    plain, ours = (logits_of(each(torch.float32), texts, budget=70, prompt_share=0.95) for each in (plain_of, make))
    assert plain.keys() == ours.keys()
    for place, row in plain.items():
        torch.testing.assert_close(ours[place], row, rtol=1e-3, atol=2e-3)


def test_the_graph_of_a_step_with_prefills_leaves_out_the_logits_of_rows_that_are_not_sampled():
    with torch.inference_mode():
        runner = runner_of(torch.float32, max_mixed_rows=64)
        batch = Batch(
            pool=BlockPool(KV_BLOCKS, 16), policy=ContinuousBatching(40), slots=SLOT_COUNT, context_length=200
        )
        for seq_id, length in enumerate((3, 90)):
            batch.add(SequenceSpec(seq_id=seq_id, token_ids=random_text(length), max_output_tokens=4))
        plan = batch.plan()
        assert [part.is_sampled for part in plan.prefills] == [True, False]
        assert runner.forward(plan).shape == (1, SHAPE.vocab_size)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_padding_a_batch_changes_no_rows_logits(count):
    with torch.inference_mode():
        runner = runner_of(torch.float32)
        step = OneStep(runner, count)
        padded = runner.forward(step.plan).clone()
        plain = plain_of(torch.float32)
        expected = plain.forward(OneStep(plain, count).plan)
    assert padded.shape == expected.shape
    torch.testing.assert_close(padded, expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [pytest.param(dtype, marks=NEEDS_GPU, id=str(dtype)) for dtype in DTYPES])
def test_a_step_waits_for_the_gpu_for_its_tokens_alone(dtype):
    options = SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=1.1, logit_bias=((4, 0.5),), logprobs=True)
    draws = [RowDraw(options, seed, [1, 2, 3], 3) for seed in range(3)]
    sample = CudaSampler(SLOT_COUNT, SMALL_SHAPE.vocab_size, DEVICE).sample
    with torch.inference_mode():
        runner = runner_of(dtype)
        plan = OneStep(runner, 3).plan
        first = sample(runner.forward(plan), draws)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as waits:
                warnings.simplefilter("always")
                again = sample(runner.forward(plan), draws)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert again == first
    assert len(waits) == 1
