"""Attention over the paged KV cache, in plain torch."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from penstock.worker.engine.torch.inputs import Chunk, StepInputs
from penstock.worker.engine.torch.kv_cache import LayerKv


def attend(q: Tensor, kv: LayerKv, inputs: StepInputs) -> Tensor:
    """Return the attention output of every row. K and V of the rows must already be in the cache.

    q:       [rows, heads, head_size]
    returns: [rows, heads * head_size]
    """
    parts = [_attend_chunk(q[chunk.rows], kv, chunk) for chunk in inputs.chunks]
    if inputs.decodes:
        parts.insert(0, _attend_decodes(q[: inputs.decodes], kv, inputs))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_decodes(q: Tensor, kv: LayerKv, inputs: StepInputs) -> Tensor:
    """One row per sequence, over KV gathered and padded to the longest.

    The query heads that share a KV head take the dimension of query positions, so that no K or V is repeated.
    """
    count, heads, head_size = q.shape
    kv_heads = kv.k.shape[2]
    k = kv.k[inputs.decode_tables].flatten(1, 2).transpose(1, 2)  # [decodes, kv_heads, positions, head_size]
    v = kv.v[inputs.decode_tables].flatten(1, 2).transpose(1, 2)
    grouped = q.view(count, kv_heads, heads // kv_heads, head_size)
    return scaled_dot_product_attention(grouped, k, v, attn_mask=inputs.decode_mask).flatten(1)


def _attend_chunk(q: Tensor, kv: LayerKv, chunk: Chunk) -> Tensor:
    """Attention of a chunk's rows, each over the positions up to its own."""
    groups = q.shape[1] // kv.k.shape[2]
    k = kv.k[chunk.table].flatten(0, 1)[: chunk.end].repeat_interleave(groups, 1).transpose(0, 1)
    v = kv.v[chunk.table].flatten(0, 1)[: chunk.end].repeat_interleave(groups, 1).transpose(0, 1)
    query = q.transpose(0, 1)[None]  # [1, heads, count, head_size]
    out = scaled_dot_product_attention(query, k[None], v[None], attn_mask=chunk.mask, is_causal=chunk.mask is None)
    return out[0].transpose(0, 1).flatten(1)
