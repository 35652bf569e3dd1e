"""The driver of Transformers' continuous batching, whose manager thread computes tokens and records their times."""

import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from engine_bench.cells import BenchCell, CellTrace
from engine_bench.drivers.protocol import DriverSetup, Stopwatch, serve

_PAGE_TOKENS = 256  # the library's default
_BATCH_TOKENS = 2048  # per step; the default depends on the memory of a GPU
_RESULT_TIMEOUT_S = 300.0  # s


def load_engine(setup: DriverSetup) -> Callable[[BenchCell], CellTrace]:
    torch.set_num_threads(setup.threads)
    model: Any = AutoModelForCausalLM.from_pretrained(
        setup.model, dtype=getattr(torch, setup.dtype), attn_implementation="sdpa"
    )
    return start_batching(model, setup, setup.vocab_size)


def start_batching(model: Any, setup: DriverSetup, vocab_size: int) -> Callable[[BenchCell], CellTrace]:
    pages = setup.max_concurrency * (-(-setup.max_context // _PAGE_TOKENS) + 1)
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=_PAGE_TOKENS,
            num_blocks=pages,
            max_batch_tokens=_BATCH_TOKENS,
            max_requests_per_batch=setup.max_concurrency,
            allow_block_sharing=False,
        ),
    )
    manager.start()
    return lambda cell: run_cell(manager, cell, vocab_size)


def run_cell(manager: Any, cell: BenchCell, vocab_size: int) -> CellTrace:
    """Raises RuntimeError if the manager fails a request, or does not answer in time."""
    prompts = cell.prompts(vocab_size)
    watch = Stopwatch(cell.concurrency)
    start = time.perf_counter() - watch.now()  # the manager uses the same clock
    ids = manager.add_requests(prompts, max_new_tokens=cell.output_tokens, record_timestamps=True)
    for _ in prompts:
        answer = manager.get_result(timeout=_RESULT_TIMEOUT_S)
        if answer is None or answer.error:
            raise RuntimeError(
                answer.error if answer else f"no answer: {manager.background_thread_status.fatal_error!r}"
            )
        for token, at in zip(answer.generated_tokens, answer.timestamps, strict=True):
            watch.record(ids.index(answer.request_id), token, at - start)
    return watch.trace()


if __name__ == "__main__":
    serve(load_engine)
