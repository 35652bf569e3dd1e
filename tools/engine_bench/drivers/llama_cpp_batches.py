"""llama.cpp through llama-cpp-python's low-level interface: the high-level one runs one sequence at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from engine_bench.cells import BenchCell, CellTrace
from engine_bench.drivers.protocol import DriverSetup, Stopwatch, serve

_BATCH_TOKENS = 2048  # tokens per call, llama.cpp's own default


def load(setup: DriverSetup) -> Callable[[BenchCell], CellTrace]:
    folder = Path(setup.model)
    path = folder / f"{folder.name}-{setup.dtype}.gguf"
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise OSError(f"llama.cpp cannot load {path.name}")
    return lambda cell: LlamaBatch(model, cell, setup).run()


class LlamaBatch:
    """One cell: a context of its own, with as many sequences as the cell has."""

    def __init__(self, model: Any, cell: BenchCell, setup: DriverSetup) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = cell.concurrency * (cell.prompt_tokens + cell.output_tokens)
        params.n_batch = _BATCH_TOKENS
        params.n_seq_max = cell.concurrency
        params.n_threads = params.n_threads_batch = setup.threads
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise OSError(f"llama.cpp cannot make a context for {cell}")
        self._batch = llama_cpp.llama_batch_init(_BATCH_TOKENS, 0, 1)
        self._cell = cell
        self._vocab_size = setup.vocab_size

    def run(self) -> CellTrace:
        prompts = self._cell.prompts(self._vocab_size)
        watch = Stopwatch(self._cell.concurrency)
        self._prefill(prompts, watch)
        for position in range(self._cell.prompt_tokens, self._cell.prompt_tokens + self._cell.output_tokens - 1):
            for sequence in range(self._cell.concurrency):
                self._put(watch.tokens[sequence][-1], position, sequence, wants_logits=True)
            self._step(watch)
        trace = watch.trace()
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        return trace

    def _prefill(self, prompts: list[list[int]], watch: Stopwatch) -> None:
        """As many whole prompts per call as it takes."""
        for sequence, prompt in enumerate(prompts):
            if self._batch.n_tokens + len(prompt) > _BATCH_TOKENS:
                self._step(watch)
            for position, token in enumerate(prompt):
                self._put(token, position, sequence, wants_logits=position == len(prompt) - 1)
        self._step(watch)

    def _put(self, token: int, position: int, sequence: int, *, wants_logits: bool) -> None:
        batch, row = self._batch, self._batch.n_tokens
        batch.token[row] = token
        batch.pos[row] = position
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = sequence
        batch.logits[row] = wants_logits
        batch.n_tokens += 1

    def _step(self, watch: Stopwatch) -> None:
        """Compute the batch, take the likeliest token of each row that wants one, and empty the batch."""
        failed = llama_cpp.llama_decode(self._context, self._batch)
        if failed:
            raise RuntimeError(f"llama_decode answers {failed}")
        tokens = [(self._batch.seq_id[row][0], self._argmax(row)) for row in self._rows_with_logits()]
        at = watch.now()
        for sequence, token in tokens:
            watch.record(sequence, token, at)
        self._batch.n_tokens = 0

    def _rows_with_logits(self) -> list[int]:
        return [row for row in range(self._batch.n_tokens) if self._batch.logits[row]]

    def _argmax(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())


if __name__ == "__main__":
    serve(load)
