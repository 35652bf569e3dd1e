"""Embeddings on the real engine: those of a plain forward pass, in any batch, chunks and pool."""

import functools
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from naive_loop import naive_states
from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.errors import EmbeddingUnsupported
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.interface import FinishReason, Pooling, SequenceSpec
from penstock.worker.engine.loaders import load
from penstock.worker.engine.native import NativeRunner, NativeUnavailable, check_native
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.torch.build import build_torch_engine
from penstock.worker.engine.torch.engine import TorchEngine, TorchRunner
from penstock.worker.engine.torch.model import Model
from penstock.worker.engine.torch.pooler import Pooler
from random_models import SHAPE, random_weights
from tiny_model import write_tiny_model

BLOCK_SIZE = 16
LEAST_COSINE = 0.9999
POOLINGS = pytest.mark.parametrize("pooling", list(Pooling))


@functools.cache
def model(*, extras=False):
    return Model(SHAPE, random_weights(SHAPE, torch.float32, extras=extras))


def torch_runner(blocks, *, extras=False):
    return TorchRunner(model(extras=extras), blocks, BLOCK_SIZE)


def native_runner(blocks, *, extras=False):
    try:
        check_native(SHAPE, BLOCK_SIZE)
    except NativeUnavailable as reason:
        pytest.skip(str(reason))
    return NativeRunner(SHAPE, random_weights(SHAPE, torch.float32, extras=extras), blocks, BLOCK_SIZE, threads=1)


RUNNERS = pytest.mark.parametrize("make_runner", [torch_runner, native_runner])


def engine_of(runner, pooling, *, blocks=200, token_budget=512, slots=8):
    policy = ContinuousBatching(token_budget=token_budget)
    batch = Batch(pool=BlockPool(blocks, BLOCK_SIZE), policy=policy, slots=slots, context_length=900)
    return TorchEngine(runner, batch, pooler=Pooler(runner, pooling))


def embedding_spec(seq_id, ids, **fields):
    return SequenceSpec(seq_id=seq_id, token_ids=ids, max_output_tokens=1, embeds=True, **fields)


def random_ids(length, seed=1):
    rng = random.Random(seed)
    return [rng.randrange(SHAPE.vocab_size) for _ in range(length)]


@functools.cache
def _naive(ids, pooling, extras):
    with torch.inference_mode():
        states = naive_states(model(extras=extras), list(ids))
    pooled = states[-1] if pooling is Pooling.LAST else states.mean(0)
    return (pooled / pooled.norm()).numpy()


def naive_embedding(ids, pooling, *, extras=False):
    return _naive(tuple(ids), pooling, extras)


def run(engine):
    """Run all sequences to their end. Returns the finished ones by seq_id, and the results of the steps."""
    finished, steps = {}, []
    while engine.has_work:
        steps.append(engine.step())
        finished |= {each.seq_id: each for each in steps[-1].finished}
    return finished, steps


def vector(finished):
    return np.frombuffer(finished.embedding, dtype="<f4")


@RUNNERS
@POOLINGS
@pytest.mark.parametrize("extras", [False, True], ids=["llama", "qwen"])
def test_an_embedding_is_that_of_a_plain_forward_pass(make_runner, pooling, extras):
    engine = engine_of(make_runner(200, extras=extras), pooling)
    prompts = [random_ids(length, length) for length in (1, 2, 16, 17, 90, 300)]
    for seq_id, ids in enumerate(prompts):
        engine.add(embedding_spec(seq_id, ids))
    finished, steps = run(engine)
    for seq_id, ids in enumerate(prompts):
        made = vector(finished[seq_id])
        assert made.shape == (SHAPE.dim,)
        assert np.linalg.norm(made) == pytest.approx(1.0, abs=1e-5)
        assert made @ naive_embedding(ids, pooling, extras=extras) >= LEAST_COSINE
        assert finished[seq_id][1:4] == (FinishReason.STOP, 0, 0)
    assert len(steps) == 1  # the prefill of all prompts is one batch
    assert sum(len(step.tokens) for step in steps) == 0


@RUNNERS
@POOLINGS
def test_chunks_of_a_prefill_do_not_change_an_embedding(make_runner, pooling):
    ids = random_ids(301)
    engine = engine_of(make_runner(200), pooling, token_budget=37)
    engine.add(embedding_spec(0, ids))
    engine.add(embedding_spec(1, random_ids(60, 2)))
    finished, steps = run(engine)
    assert len(steps) > 301 // 37
    assert sum(each.tokens for step in steps for each in step.prefilled if each.seq_id == 0) == len(ids)
    np.testing.assert_allclose(vector(finished[0]), naive_embedding(ids, pooling), atol=1e-4)


@POOLINGS
def test_a_last_chunk_of_one_token_draws_no_token(pooling):
    ids = random_ids(17)
    engine = engine_of(torch_runner(200), pooling, token_budget=16)
    engine.add(embedding_spec(0, ids))
    finished, steps = run(engine)
    assert [(step.prefill_tokens, step.decode_seqs, step.tokens) for step in steps] == [(16, 0, []), (1, 0, [])]
    assert vector(finished[0]) @ naive_embedding(ids, pooling) >= LEAST_COSINE


@RUNNERS
@POOLINGS
def test_prompts_to_embed_and_to_continue_share_a_batch(make_runner, pooling):
    texts = [random_ids(20, seed) for seed in range(3)]

    def texts_made(*, with_embeddings):
        engine = engine_of(make_runner(200), pooling, token_budget=32)
        for seq_id, ids in enumerate(texts):
            engine.add(SequenceSpec(seq_id=seq_id, token_ids=ids, max_output_tokens=12, ignore_eos=True))
            if with_embeddings:
                engine.add(embedding_spec(100 + seq_id, ids[: 1 + 9 * seq_id]))
        finished, steps = run(engine)
        pairs = [pair for step in steps for pair in zip(step.seq_ids, step.tokens, strict=True)]
        return finished, {each: [token for seq_id, token in pairs if seq_id == each] for each, _ in pairs}

    finished, together = texts_made(with_embeddings=True)
    assert together == texts_made(with_embeddings=False)[1]
    for seq_id, ids in enumerate(texts):
        assert finished[seq_id].embedding == b""
        expected = naive_embedding(ids[: 1 + 9 * seq_id], pooling)
        assert vector(finished[100 + seq_id]) @ expected >= LEAST_COSINE


@POOLINGS
def test_a_preempted_prompt_begins_anew(pooling):
    engine = engine_of(torch_runner(10), pooling, blocks=10, token_budget=4, slots=2)
    engine.add(SequenceSpec(seq_id=0, token_ids=random_ids(15), max_output_tokens=80, ignore_eos=True))
    for _ in range(8):
        engine.step()
    ids = random_ids(100, 3)
    engine.add(embedding_spec(1, ids))
    finished, steps = run(engine)
    assert any(step.preempted for step in steps)
    computed = [each.tokens for step in steps for each in step.prefilled if each.seq_id == 1]
    assert sum(computed) > len(ids)
    assert vector(finished[1]) @ naive_embedding(ids, pooling) >= LEAST_COSINE


@POOLINGS
def test_a_cancelled_prompt_leaves_nothing(pooling):
    engine = engine_of(torch_runner(200), pooling, token_budget=16)
    engine.add(embedding_spec(0, random_ids(100)))
    engine.step()
    assert engine.cancel(0)
    assert [each.seq_id for each in engine.step().cancelled] == [0]
    assert engine.capacity().blocks_free == 200
    assert engine._pooler._sums == {}


def test_the_last_state_is_computed_with_the_prefix_of_another_sequence():
    ids = random_ids(100)
    engine = engine_of(torch_runner(200), Pooling.LAST)
    for seq_id in range(2):
        engine.add(embedding_spec(seq_id, ids, cache_salt=b"tenant"))
        finished, _ = run(engine)
        assert finished[seq_id].cached_tokens == (96 if seq_id else 0)
        assert vector(finished[seq_id]) @ naive_embedding(ids, Pooling.LAST) >= LEAST_COSINE


def test_a_mean_shares_no_prefix_whose_states_are_gone():
    ids = random_ids(100)
    engine = engine_of(torch_runner(200), Pooling.MEAN)
    engine.add(SequenceSpec(seq_id=0, token_ids=ids, max_output_tokens=1, cache_salt=b"tenant"))
    run(engine)
    engine.add(embedding_spec(1, ids, cache_salt=b"tenant"))
    finished, _ = run(engine)
    assert finished[1].cached_tokens == 0
    assert vector(finished[1]) @ naive_embedding(ids, Pooling.MEAN) >= LEAST_COSINE


def test_an_engine_without_pooling_rejects_a_prompt_to_embed():
    runner = torch_runner(20)
    batch = Batch(
        pool=BlockPool(20, BLOCK_SIZE), policy=ContinuousBatching(token_budget=16), slots=2, context_length=90
    )
    engine = TorchEngine(runner, batch)
    with pytest.raises(EmbeddingUnsupported):
        engine.add(embedding_spec(0, [1, 2]))
    assert not engine.has_work


@pytest.mark.parametrize("compute", ["native", "torch"])
def test_a_built_engine_embeds_as_its_checkpoint_does(compute):
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_model(Path(folder) / "tiny")
        reference = load(path, torch.float32, torch.device("cpu"))[0]
        digests = set()
        for pooling in Pooling:
            options = EngineOptions(
                model=str(path), threads=1, kv_blocks=64, compute=compute, dtype="float32", pooling=pooling.value
            )
            try:
                engine, card = build_torch_engine(options)
            except ValueError as unavailable:
                pytest.skip(str(unavailable))
            digests.add(card.digest(16))
            assert card.embedding_size == reference.shape.dim
            engine.add(embedding_spec(0, [40, 41, 42, 43]))
            finished, _ = run(engine)
            with torch.inference_mode():
                states = naive_states(reference, [40, 41, 42, 43])
            expected = (states[-1] if pooling is Pooling.LAST else states.mean(0)).numpy()
            assert vector(finished[0]) @ expected / np.linalg.norm(expected) >= LEAST_COSINE
        assert len(digests) == 2
