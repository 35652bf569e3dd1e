"""llama.cpp through llama-cpp-python's low-level interface: the high-level one runs one sequence at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from engine_bench.cells import Cell, Trace
from engine_bench.drivers.protocol import Setup, Stopwatch, serve

_BATCH = 2048  # tokens per call, llama.cpp's own default


def load(setup: Setup) -> Callable[[Cell], Trace]:
    folder = Path(setup.model)
    path = folder / f"{folder.name}-{setup.dtype}.gguf"
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise OSError(f"llama.cpp cannot load {path.name}")
    return lambda cell: Batch(model, cell, setup).run()


class Batch:
    """One cell: a context of its own, with as many sequences as the cell has."""

    def __init__(self, model: Any, cell: Cell, setup: Setup) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = cell.concurrent * (cell.prompt + cell.output)
        params.n_batch = _BATCH
        params.n_seq_max = cell.concurrent
        params.n_threads = params.n_threads_batch = setup.threads
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise OSError(f"llama.cpp cannot make a context for {cell}")
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)
        self._cell = cell
        self._vocab_size = setup.vocab_size

    def run(self) -> Trace:
        prompts = self._cell.prompts(self._vocab_size)
        watch = Stopwatch(self._cell.concurrent)
        self._prefill(prompts, watch)
        for position in range(self._cell.prompt, self._cell.prompt + self._cell.output - 1):
            for sequence in range(self._cell.concurrent):
                self._put(watch.tokens[sequence][-1], position, sequence, wanted=True)
            self._step(watch)
        trace = watch.trace()
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        return trace

    def _prefill(self, prompts: list[list[int]], watch: Stopwatch) -> None:
        """As many whole prompts per call as it takes."""
        for sequence, prompt in enumerate(prompts):
            if self._batch.n_tokens + len(prompt) > _BATCH:
                self._step(watch)
            for position, token in enumerate(prompt):
                self._put(token, position, sequence, wanted=position == len(prompt) - 1)
        self._step(watch)

    def _put(self, token: int, position: int, sequence: int, *, wanted: bool) -> None:
        batch, row = self._batch, self._batch.n_tokens
        batch.token[row] = token
        batch.pos[row] = position
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = sequence
        batch.logits[row] = wanted
        batch.n_tokens += 1

    def _step(self, watch: Stopwatch) -> None:
        """Compute the batch, take the likeliest token of each row that wants one, and empty the batch."""
        failed = llama_cpp.llama_decode(self._context, self._batch)
        if failed:
            raise RuntimeError(f"llama_decode answers {failed}")
        tokens = [(self._batch.seq_id[row][0], self._likeliest(row)) for row in self._wanted()]
        at = watch.now()
        for sequence, token in tokens:
            watch.enter(sequence, token, at)
        self._batch.n_tokens = 0

    def _wanted(self) -> list[int]:
        return [row for row in range(self._batch.n_tokens) if self._batch.logits[row]]

    def _likeliest(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())


if __name__ == "__main__":
    serve(load)
