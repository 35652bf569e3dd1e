"""The reference for engines: the whole sequence is recomputed for each token, without a cache.

It is independent of the engine's model: separate attention code on the same weights.
"""

import torch

from penstock.worker.engine.torch.model import Model


def naive_logits(model: Model, ids: list[int]) -> torch.Tensor:
    """Logits after the last of `ids`: [vocab_size] float32."""
    return naive_states(model, ids)[-1] @ model.weights.head.T


def naive_states(model: Model, ids: list[int]) -> torch.Tensor:
    """Hidden states of all of `ids` after the final norm: [ids, dim] float32."""
    shape, weights = model.shape, model.weights
    x = weights.embedding[torch.tensor(ids)].float()
    angles = torch.arange(len(ids), dtype=torch.float64)[:, None] * weights.inverse_frequencies.double()
    cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
    hidden = torch.full((len(ids), len(ids)), -torch.inf).triu(1)
    for layer in weights.layers:
        qkv = _norm(x, layer.attention_norm, shape.norm_eps) @ layer.qkv.T
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias
        q, k, v = qkv.view(len(ids), -1, shape.head_size).split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        if layer.q_norm is not None:
            q, k = _norm(q, layer.q_norm, shape.norm_eps), _norm(k, layer.k_norm, shape.norm_eps)
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        groups = shape.heads // shape.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / shape.head_size**0.5 + hidden
        mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1)
        x = x + mixed @ layer.out.T
        gate, up = (_norm(x, layer.mlp_norm, shape.norm_eps) @ layer.gate_up.T).chunk(2, dim=-1)
        x = x + (gate / (1 + (-gate).exp()) * up) @ layer.down.T
    return _norm(x, weights.norm, shape.norm_eps)


def naive_greedy(model: Model, ids: list[int], count: int, stop_ids: frozenset[int] = frozenset()) -> list[int]:
    out: list[int] = []
    while len(out) < count and not (out and out[-1] in stop_ids):
        out.append(int(naive_logits(model, ids + out).argmax()))
    return out


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], dim=-1)
