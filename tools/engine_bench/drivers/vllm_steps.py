"""The driver of vLLM on a CPU, with its engine loop in this process instead of its usual separate processes."""

from collections.abc import Callable

from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from engine_bench.cells import BenchCell, CellTrace
from engine_bench.drivers.protocol import MAX_STEP_TOKENS, DriverSetup, Stopwatch, serve


def load_engine(setup: DriverSetup) -> Callable[[BenchCell], CellTrace]:
    llm = LLM(
        model=setup.model,
        dtype=setup.dtype,
        max_model_len=setup.max_context,
        max_num_seqs=setup.max_concurrency,
        max_num_batched_tokens=MAX_STEP_TOKENS,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        seed=0,
    )
    return lambda cell: run_cell(llm, cell, setup.vocab_size)


def run_cell(llm: LLM, cell: BenchCell, vocab_size: int) -> CellTrace:
    engine = llm.llm_engine
    prompts = cell.prompts(vocab_size)
    watch = Stopwatch(cell.concurrency)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=cell.output_tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    for sequence, prompt in enumerate(prompts):
        engine.add_request(str(sequence), {"prompt_token_ids": prompt}, params)
    while engine.has_unfinished_requests():
        outputs = engine.step()
        at = watch.now()
        for output in outputs:
            for token in output.outputs[0].token_ids:
                watch.record(int(output.request_id), token, at)
    return watch.trace()


if __name__ == "__main__":
    serve(load_engine)
