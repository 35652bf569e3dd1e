"""The driver of Penstock's engine, through the interface that a worker uses."""

from collections.abc import Callable

from engine_bench.cells import BenchCell, CellTrace
from engine_bench.drivers.protocol import MAX_STEP_TOKENS, DriverSetup, Stopwatch, serve
from penstock.worker.engine.build import build_engine
from penstock.worker.engine.interface import Engine, SamplingParams, SequenceSpec
from penstock.worker.engine.options import EngineOptions

_BLOCK_SIZE = 16


def load_engine(setup: DriverSetup) -> Callable[[BenchCell], CellTrace]:
    engine = build_engine_for(setup)
    return lambda cell: run_cell(engine, cell, setup.vocab_size)


def build_engine_for(setup: DriverSetup) -> Engine:
    blocks = setup.max_concurrency * (-(-setup.max_context // _BLOCK_SIZE) + 1)
    engine, _ = build_engine(
        EngineOptions(
            model=setup.model,
            dtype="float32" if setup.dtype == "float32" else "bfloat16",
            device="cpu",
            kv_blocks=blocks,
            block_size=_BLOCK_SIZE,
            slots=setup.max_concurrency,
            threads=setup.threads,
            token_budget=MAX_STEP_TOKENS,
        )
    )
    return engine


def run_cell(
    engine: Engine,
    cell: BenchCell,
    vocab_size: int,
    *,
    sampling: SamplingParams | None = None,
    first_prompt_tokens: int = 0,
) -> CellTrace:
    """first_prompt_tokens: length of the first prompt, if it is to be longer than the cell's."""
    prompts = cell.prompts(vocab_size)
    if first_prompt_tokens:
        prompts[0] = [token % vocab_size for token in range(first_prompt_tokens)]
    watch = Stopwatch(cell.concurrency)
    for seq_id, prompt in enumerate(prompts):
        engine.add(
            SequenceSpec(
                seq_id=seq_id,
                token_ids=prompt,
                max_output_tokens=cell.output_tokens,
                ignore_eos=True,
                sampling=sampling or SamplingParams(),
            )
        )
    while engine.has_work:
        result = engine.step()
        at = watch.now()
        for seq_id, token in zip(result.seq_ids, result.tokens, strict=True):
            watch.record(seq_id, token, at)
    return watch.trace()


if __name__ == "__main__":
    serve(load_engine)
