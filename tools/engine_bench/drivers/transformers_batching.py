"""Transformers' continuous batching: a manager whose own thread computes and stamps the tokens."""

import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from engine_bench.cells import Cell, Trace
from engine_bench.drivers.protocol import Setup, Stopwatch, serve

_PAGE = 256  # tokens, the library's own default
_BATCH = 2048  # tokens per step; the default is drawn from a GPU's memory
_PATIENCE = 300.0  # s


def load(setup: Setup) -> Callable[[Cell], Trace]:
    torch.set_num_threads(setup.threads)
    model: Any = AutoModelForCausalLM.from_pretrained(
        setup.model, dtype=getattr(torch, setup.dtype), attn_implementation="sdpa"
    )
    return begin(model, setup, setup.vocab_size)


def begin(model: Any, setup: Setup, vocab_size: int) -> Callable[[Cell], Trace]:
    pages = setup.concurrent * (-(-setup.context // _PAGE) + 1)
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=_PAGE,
            num_blocks=pages,
            max_batch_tokens=_BATCH,
            max_requests_per_batch=setup.concurrent,
            allow_block_sharing=False,
        ),
    )
    manager.start()
    return lambda cell: run(manager, cell, vocab_size)


def run(manager: Any, cell: Cell, vocab_size: int) -> Trace:
    """Raises RuntimeError when the manager fails a request or answers nothing for long."""
    prompts = cell.prompts(vocab_size)
    watch = Stopwatch(cell.concurrent)
    start = time.perf_counter() - watch.now()  # the manager stamps by the same clock
    ids = manager.add_requests(prompts, max_new_tokens=cell.output, record_timestamps=True)
    for _ in prompts:
        answer = manager.get_result(timeout=_PATIENCE)
        if answer is None or answer.error:
            raise RuntimeError(
                answer.error if answer else f"no answer: {manager.background_thread_status.fatal_error!r}"
            )
        for token, at in zip(answer.generated_tokens, answer.timestamps, strict=True):
            watch.enter(ids.index(answer.request_id), token, at - start)
    return watch.trace()


if __name__ == "__main__":
    serve(load)
