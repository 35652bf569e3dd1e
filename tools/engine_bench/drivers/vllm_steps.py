"""vLLM on a CPU, stepped in this process: its own engine loop, without the pipes between its usual processes."""

from collections.abc import Callable

from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from engine_bench.cells import Cell, Trace
from engine_bench.drivers.protocol import STEP_TOKENS, Setup, Stopwatch, serve


def load(setup: Setup) -> Callable[[Cell], Trace]:
    llm = LLM(
        model=setup.model,
        dtype=setup.dtype,
        max_model_len=setup.context,
        max_num_seqs=setup.concurrent,
        max_num_batched_tokens=STEP_TOKENS,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        seed=0,
    )
    return lambda cell: run(llm, cell, setup.vocab_size)


def run(llm: LLM, cell: Cell, vocab_size: int) -> Trace:
    engine = llm.llm_engine
    prompts = cell.prompts(vocab_size)
    watch = Stopwatch(cell.concurrent)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=cell.output,
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
                watch.enter(int(output.request_id), token, at)
    return watch.trace()


if __name__ == "__main__":
    serve(load)
