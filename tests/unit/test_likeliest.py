"""The likeliest tokens of each position, from logits to the frames of a worker."""

import pytest
import torch

from naive_loop import naive_logits
from penstock.worker.engine.build import build_engine
from penstock.worker.engine.interface import LikeliestTokens, SamplingParams, SequenceSpec
from penstock.worker.engine.loaders import load
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.sampling.draw import RowDraw
from penstock.worker.engine.sampling.likeliest import likeliest_tokens
from penstock.worker.frames import step_frame
from penstock.worker.runs.effects import StepTokens
from tiny_model import write_tiny_model
from worker_runs import EDGE, ready_table, started_run, step_result

VOCAB_SIZE = 600
LOGITS = torch.randn(4, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)) * 3


def draw_of(count, **params):
    return RowDraw(SamplingParams(logprobs=count > 0, top_logprobs=count, **params), 7, [1, 2], 2)


def test_each_row_has_as_many_tokens_as_it_requests():
    found = likeliest_tokens(LOGITS, [draw_of(3), draw_of(0), draw_of(20), draw_of(1)])
    assert {row: len(top.token_ids) for row, top in found.items()} == {0: 3, 2: 20, 3: 1}
    for row, (token_ids, logprobs) in found.items():
        expected = LOGITS[row].log_softmax(-1).sort(descending=True)
        assert list(token_ids) == expected.indices[: len(token_ids)].tolist()
        assert list(logprobs) == pytest.approx(expected.values[: len(token_ids)].tolist(), abs=1e-5)


def test_they_are_of_the_models_own_distribution():
    adjusted = draw_of(5, temperature=0.2, frequency_penalty=2.0, logit_bias=((9, 100.0),))._replace(allowed=[3, 4])
    assert likeliest_tokens(LOGITS[:1], [adjusted]) == likeliest_tokens(LOGITS[:1], [draw_of(5)])


def test_rows_that_request_none_cost_no_computation():
    assert likeliest_tokens(None, [draw_of(0)] * 3) == {}


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1.0, frequency_penalty=0.5)])
def test_log_probabilities_are_those_of_a_plain_forward_pass(tmp_path, sampling):
    folder = write_tiny_model(tmp_path / "tiny", context=96)
    options = EngineOptions(engine="torch", model=str(folder), dtype="float32", device="cpu", kv_blocks=48, slots=4)
    engine, _ = build_engine(options)
    reference = load(folder, torch.float32, torch.device("cpu"))[0]
    ids = list(range(40, 60))
    params = SamplingParams(
        logprobs=True,
        top_logprobs=20,
        temperature=sampling.temperature,
        frequency_penalty=sampling.frequency_penalty,
    )
    spec = SequenceSpec(seq_id=1, token_ids=ids, max_output_tokens=12, ignore_eos=True, seed=3, sampling=params)
    engine.add(spec)
    made = 0
    while engine.has_work:
        result = engine.step()
        for place, (token, logprob) in enumerate(zip(result.tokens, result.logprobs, strict=True)):
            with torch.inference_mode():
                expected = naive_logits(reference, ids).log_softmax(-1)
            top = result.likeliest[place]
            assert logprob == pytest.approx(float(expected[token]), abs=1e-3)
            assert list(top.logprobs) == pytest.approx(expected[list(top.token_ids)].tolist(), abs=1e-3)
            assert list(top.logprobs) == pytest.approx(expected.topk(20).values.tolist(), abs=1e-3)
            ids = [*ids, token]
            made += 1
    assert made == 12


def test_runs_that_request_the_same_number_share_a_group():
    table = ready_table()
    counts = [0, 2, 2, 3]
    runs = [
        started_run(
            table,
            handle=handle,
            lease=f"l{handle}",
            ticket=f"t{handle}",
            sampling=SamplingParams(logprobs=count > 0, top_logprobs=count),
        )
        for handle, count in enumerate(counts, start=1)
    ]
    result = step_result(1, *runs)
    result.likeliest = {
        place: LikeliestTokens([10 * place + n for n in range(count)], [-1.0 - n for n in range(count)])
        for place, count in enumerate(counts)
        if count
    }
    groups = table.on_step(result, 0.0, 1.0)
    assert [(each.handles, each.top_token_ids) for each in groups] == [
        ([1], []),
        ([2, 3], [10, 11, 20, 21]),
        ([4], [30, 31, 32]),
    ]
    assert groups[1].top_logprobs == [-1.0, -2.0, -1.0, -2.0]
    assert {each.stream for each in groups} == {EDGE}


def test_a_step_has_the_likeliest_tokens_of_its_runs():
    tokens = StepTokens(1, 12, [3], [70], [0], [-0.5], True, [70, 71], [-0.5, -1.5])
    step = step_frame(tokens).step
    assert (list(step.top_token_ids), list(step.top_logprobs)) == ([70, 71], [-0.5, -1.5])
