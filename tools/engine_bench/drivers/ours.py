"""Penstock's own engine, through the interface that a worker drives it by."""

from collections.abc import Callable

from engine_bench.cells import Cell, Trace
from engine_bench.drivers.protocol import STEP_TOKENS, Setup, Stopwatch, serve
from penstock.worker.engine.build import build_engine
from penstock.worker.engine.interface import Engine, SequenceSpec
from penstock.worker.engine.options import EngineOptions

_BLOCK_SIZE = 16


def load(setup: Setup) -> Callable[[Cell], Trace]:
    engine = build(setup)
    return lambda cell: run(engine, cell, setup.vocab_size)


def build(setup: Setup) -> Engine:
    blocks = setup.concurrent * (-(-setup.context // _BLOCK_SIZE) + 1)
    engine, _ = build_engine(
        EngineOptions(
            model=setup.model,
            dtype="float32" if setup.dtype == "float32" else "bfloat16",
            device="cpu",
            kv_blocks=blocks,
            block_size=_BLOCK_SIZE,
            slots=setup.concurrent,
            threads=setup.threads,
            token_budget=STEP_TOKENS,
        )
    )
    return engine


def run(engine: Engine, cell: Cell, vocab_size: int) -> Trace:
    prompts = cell.prompts(vocab_size)
    watch = Stopwatch(cell.concurrent)
    for seq_id, prompt in enumerate(prompts):
        engine.add(SequenceSpec(seq_id=seq_id, token_ids=prompt, max_output_tokens=cell.output, ignore_eos=True))
    while engine.has_work:
        result = engine.step()
        at = watch.now()
        for seq_id, token in zip(result.seq_ids, result.tokens, strict=True):
            watch.enter(seq_id, token, at)
    return watch.trace()


if __name__ == "__main__":
    serve(load)
