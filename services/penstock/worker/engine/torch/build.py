"""Builds the torch engine that the options describe. Importing this module loads torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import structlog
import torch
from torch import Tensor

from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.build import build_batch
from penstock.worker.engine.cuda import CudaUnavailable, check_cuda
from penstock.worker.engine.grammar.compiler import GrammarCompiler
from penstock.worker.engine.grammar.forms import FormSequences
from penstock.worker.engine.interface import MAX_TOP_LOGPROBS, Pooling, SamplingParams, SequenceSpec
from penstock.worker.engine.loaders.load import locate_model
from penstock.worker.engine.loaders.load_model import read_checkpoint
from penstock.worker.engine.loaders.weights_digest import identified
from penstock.worker.engine.machine.cpu_limits import available_cores
from penstock.worker.engine.machine.memory import cpu_pool_bytes, fit_context, gpu_pool_bytes
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.engine.native import NativeRunner, NativeUnavailable, check_native
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.sampling.draw import RowDraw
from penstock.worker.engine.sampling.likeliest import likeliest_tokens
from penstock.worker.engine.sampling.sampler import sample
from penstock.worker.engine.torch.engine import Runner, Sampler, TorchEngine, TorchRunner
from penstock.worker.engine.torch.kv_cache import blocks_that_fit
from penstock.worker.engine.torch.model import Model
from penstock.worker.engine.torch.pooler import EmbeddingRunner, Pooler
from penstock.worker.engine.torch.weights import ModelShape

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

log = structlog.get_logger()


@torch.inference_mode()
def build_torch_engine(options: EngineOptions) -> tuple[TorchEngine, ModelCard]:
    """Load the model and build its engine. Raises ValueError if native compute is required and unavailable."""
    threads = options.threads or available_cores()
    device = _device(options.device)
    path, name = locate_model(options.model)
    checkpoint = read_checkpoint(path, name)
    shape = checkpoint.shape
    torch.set_num_threads(threads)
    dtype, is_native = _choose_dtype(options, shape, device)
    weights = checkpoint.weights(dtype, device)
    kv_bytes = options.kv_bytes or _pool_bytes(device)
    blocks = options.kv_blocks or blocks_that_fit(kv_bytes, shape, options.block_size, dtype)
    card = identified(checkpoint.card, path, engine="torch", dtype=str(dtype).removeprefix("torch."))
    card = fit_context(card, blocks, options.block_size)
    runner: Runner
    sampler: Sampler = sample
    with _explained_memory_errors(options):
        if is_native:
            runner = NativeRunner(shape, weights, blocks, options.block_size, threads)
            torch.set_num_threads(1)  # torch's threads would spin on the cores of the native ones
        elif device.type == "cuda" and _can_use_kernels(options, device):
            from penstock.worker.engine.cuda.runner import CudaRunner  # noqa: PLC0415 - needs Triton
            from penstock.worker.engine.cuda.sampler import CudaSampler  # noqa: PLC0415 - needs Triton

            runner = CudaRunner(shape, weights, blocks, options.block_size, options.slots)
            sampler = CudaSampler(options.slots, shape.vocab_size, device).sample
        else:
            runner = TorchRunner(Model(shape, weights), blocks, options.block_size)
        _warm_up(runner, build_batch(options, card, blocks), options.token_budget)
        _warm_up_sampler(sampler, torch.zeros(options.slots, shape.vocab_size, device=device))
    # Without an id that ends a text, no output could have a form.
    card = replace(card, enforces_forms=bool(card.eos_ids))
    forms = FormSequences(GrammarCompiler(card) if card.enforces_forms else None, max(1, threads // 2))
    pooler = Pooler(runner, Pooling(options.pooling)) if isinstance(runner, EmbeddingRunner) else None
    if pooler:
        card = replace(card, embedding_size=shape.dim, pooling=options.pooling)
    return TorchEngine(runner, build_batch(options, card, blocks), sampler, forms, pooler), card


@contextmanager
def _explained_memory_errors(options: EngineOptions) -> Iterator[None]:
    """Turn a lack of GPU memory at the start, where it harms no request, into an error that names the settings."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"the GPU has too little memory for steps of {options.slots} slots and {options.token_budget} tokens; "
            f"set kv_bytes, slots or token_budget lower ({error})"
        ) from error


def _warm_up(runner: Runner, batch: Batch, token_budget: int) -> None:
    """Run the largest prefill of a step and a decode, in the blocks that a new batch allocates first.

    Otherwise the first clients would wait for it: the first write to memory makes a step ten times as long.
    """
    pool_tokens = min(batch.context_length, batch.pool.blocks * batch.pool.block_size)
    prompt = [0] * (min(token_budget, pool_tokens) - 2)
    batch.add(SequenceSpec(seq_id=0, token_ids=prompt or [0], max_output_tokens=2, ignore_eos=True))
    while batch.has_work:
        plan = batch.plan()
        runner.forward(plan)
        batch.commit(plan, [0] * len(plan.sampled), [0.0] * len(plan.sampled))


def _warm_up_sampler(sampler: Sampler, logits: Tensor) -> None:
    """Draw a token for every slot with every option, which compiles kernels and allocates the most memory of a draw.

    logits: [slots, vocab_size]
    """
    params = SamplingParams(
        temperature=1.0,
        top_k=2,
        top_p=0.9,
        min_p=0.1,
        frequency_penalty=0.1,
        repetition_penalty=1.1,
        logit_bias=((0, 1.0),),
        logprobs=True,
        top_logprobs=min(MAX_TOP_LOGPROBS, logits.shape[1]),
    )
    draws = [RowDraw(params, slot, [0, 0], 1, [0]) for slot in range(len(logits))]
    likeliest_tokens(logits, draws)
    sampler(logits, draws)


def _choose_dtype(options: EngineOptions, shape: ModelShape, device: torch.device) -> tuple[torch.dtype, bool]:
    """Return the dtype to compute in, and whether to use native code.

    `auto` is bfloat16 in native code on CPUs with arithmetic for it, where a row rounds equally in every batch. It is
    float32 in plain torch on a CPU, where a row does not, so that a text resumed after a fault could diverge where two
    tokens are nearly equal. On GPUs it is bfloat16 for its speed, with that risk, which cuBLAS has in any case.
    """
    if device.type != "cpu" or options.compute == "torch":
        return _DTYPES[_resolve_auto(options.dtype, "float32" if device.type == "cpu" else "bfloat16")], False
    try:
        has_bfloat16 = check_native(shape, options.block_size)
    except NativeUnavailable as reason:
        if options.compute == "native":
            raise ValueError(f"native compute is unavailable: {reason}") from reason
        log.warning("native_unavailable", reason=str(reason), instead="torch")
        return _DTYPES[_resolve_auto(options.dtype, "float32")], False
    name = _resolve_auto(options.dtype, "bfloat16" if has_bfloat16 else "float32")
    return _DTYPES[name], name == "float32" or has_bfloat16


def _can_use_kernels(options: EngineOptions, device: torch.device) -> bool:
    """Whether our own kernels compute the steps on this GPU."""
    if options.compute == "torch":
        return False
    try:
        check_cuda(device)
    except CudaUnavailable as reason:
        if options.compute == "native":
            raise ValueError(f"native compute is unavailable: {reason}") from reason
        log.warning("kernels_unavailable", reason=str(reason), instead="torch")
        return False
    return True


def _resolve_auto(name: str, default: str) -> str:
    return default if name == "auto" else name


def _pool_bytes(device: torch.device) -> int:
    """Return the size of the KV pool; called after the weights are loaded, which reduces the free memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return gpu_pool_bytes(free)
    return cpu_pool_bytes()


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
