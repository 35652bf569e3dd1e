"""Comparison of the engine's forward passes: random models, and the logits of texts run through a batch."""

import random

import torch

from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.torch.weights import Layer, ModelShape, Weights, rope_frequencies

KV_BLOCKS = 200
SHAPE = ModelShape(
    dim=64, hidden=96, layers=2, heads=4, kv_heads=2, head_size=16, vocab_size=304, context_length=900, norm_eps=1e-5
)


def random_weights(shape, dtype, *, extras=False, tied=False):
    """`extras`: with the features that Qwen models have beyond Llama's."""
    generator = torch.Generator().manual_seed(7)

    def matrix(rows, columns, gain=1.0):
        return (torch.randn(rows, columns, generator=generator) * gain / columns**0.5).to(dtype)

    def vector(size, around):
        return around + 0.2 * torch.randn(size, generator=generator)

    rows = (shape.heads + 2 * shape.kv_heads) * shape.head_size
    layers = [
        Layer(
            attention_norm=vector(shape.dim, 1.0),
            qkv=matrix(rows, shape.dim, 2.0),
            qkv_bias=vector(rows, 0.0).to(dtype) if extras else None,
            q_norm=vector(shape.head_size, 1.0) if extras else None,
            k_norm=vector(shape.head_size, 1.0) if extras else None,
            out=matrix(shape.dim, shape.heads * shape.head_size, 2.0),
            mlp_norm=vector(shape.dim, 1.0),
            gate_up=matrix(2 * shape.hidden, shape.dim),
            down=matrix(shape.dim, shape.hidden),
        )
        for _ in range(shape.layers)
    ]
    embedding = matrix(shape.vocab_size, shape.dim, shape.dim**0.5)
    return Weights(
        embedding=embedding,
        layers=layers,
        norm=vector(shape.dim, 1.0),
        head=embedding if tied else matrix(shape.vocab_size, shape.dim, 2.0),
        inverse_frequencies=rope_frequencies(shape.head_size, 10_000.0),
    )


def logits_of(runner, texts, *, budget=512, block_size=16, prompt_share=0.7, salt=b""):
    """Logits after every position from the prompt's last on, with the rest of each text as what was `sampled`."""
    pool = BlockPool(KV_BLOCKS, block_size)
    batch = Batch(pool=pool, policy=ContinuousBatching(token_budget=budget), slots=8, context_length=900)
    prompts = [max(1, int(len(text) * prompt_share)) for text in texts]
    for seq_id, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        count = len(text) - prompt + 1
        batch.add(SequenceSpec(seq_id=seq_id, token_ids=text[:prompt], max_output_tokens=count, cache_salt=salt))
    logits = {}
    with torch.inference_mode():
        while batch.has_work:
            plan = batch.plan()
            rows = runner.forward(plan).clone() if plan.slices else []
            tokens = []
            for row, sequence in zip(rows, plan.sampled, strict=True):
                at = len(sequence.ids)
                logits[sequence.spec.seq_id, at] = row
                tokens.append([*texts[sequence.spec.seq_id], 0][at])
            batch.commit(plan, tokens, [0.0] * len(tokens))
    return logits


def random_text(length, seed=1):
    rng = random.Random(seed)
    return [rng.randrange(300) for _ in range(length)]
