import functools
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from naive_loop import naive_greedy, naive_logits
from paths import STORIES
from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.policy import ContinuousBatching, StaticBatching
from penstock.worker.engine.interface import AllowedChoices, SamplingParams, SequenceSpec
from penstock.worker.engine.loaders import load
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.sampling.sampler import sample
from penstock.worker.engine.torch import build
from penstock.worker.engine.torch.engine import TorchEngine, TorchRunner
from penstock.worker.engine.torch.kv_cache import blocks_that_fit
from tiny_model import write_tiny_model

CPU = torch.device("cpu")
CONTEXT = 96


@functools.cache
def tiny():
    with tempfile.TemporaryDirectory() as folder:
        return load(write_tiny_model(Path(folder) / "tiny", context=CONTEXT), torch.float32, CPU)[0]


@functools.cache
def alone(prompt, count):
    """Naive greedy text, and whether two scores were so close that rounding may decide."""
    with torch.inference_mode():
        tokens = naive_greedy(tiny(), list(prompt), count)
        best = naive_logits(tiny(), [*prompt, *tokens[:-1]]).topk(2).values
    return tokens, bool(best[0] - best[1] < 1e-4)


def engine_of(model=None, *, blocks=64, block_size=4, slots=4, batching=None, context=CONTEXT):
    batching = batching or ContinuousBatching(token_budget=16)
    batch = Batch(pool=BlockPool(blocks, block_size), policy=batching, slots=slots, context_length=context)
    return TorchEngine(TorchRunner(model or tiny(), blocks, block_size), batch)


def run_out(engine):
    texts = {}
    while engine.has_work:
        result = engine.step()
        for seq_id, token in zip(result.seq_ids, result.tokens, strict=True):
            texts.setdefault(seq_id, []).append(token)
    return texts


prompts = st.one_of(
    st.lists(st.integers(0, 303), min_size=1, max_size=30),
    st.integers(1, 30).map(lambda length: list(range(50, 50 + length))),  # shared beginnings
)
events = st.lists(
    st.one_of(st.tuples(prompts, st.integers(1, 12), st.sampled_from([b"", b"tenant"])), st.integers(0, 8), st.none()),
    max_size=12,
)
policies = st.one_of(st.builds(ContinuousBatching, token_budget=st.integers(1, 40)), st.just(StaticBatching()))


@settings(max_examples=40, deadline=None)
@given(events, policies, st.integers(1, 4), st.integers(11, 30))
def test_greedy_text_equals_that_of_the_naive_loop_in_any_batch(events, batching, slots, blocks):
    engine = engine_of(batching=batching, slots=slots, blocks=blocks)
    added, texts, ended = {}, {}, set()
    pending = list(events)
    while pending or engine.has_work:
        event = pending.pop(0) if pending else None
        if isinstance(event, tuple):
            prompt, count, salt = event
            added[len(added)] = (tuple(prompt), count)
            spec = SequenceSpec(seq_id=len(added) - 1, token_ids=prompt, max_output_tokens=count, cache_salt=salt)
            engine.add(spec)
        elif isinstance(event, int):
            engine.cancel(event)
        result = engine.step()
        for seq_id, token in zip(result.seq_ids, result.tokens, strict=True):
            texts.setdefault(seq_id, []).append(token)
        ended |= {done.seq_id for done in result.finished}
    for seq_id, (prompt, count) in added.items():
        got = texts.get(seq_id, [])
        assert len(got) == count or seq_id not in ended
        for end in range(1, len(got) + 1):
            expected, tied = alone(prompt, end)
            if tied:
                break
            assert got[:end] == expected
    assert engine.capacity().blocks_free == blocks


def test_the_tiny_models_text_depends_on_its_whole_context():
    prompt = list(range(40, 80))
    changed = [41, *prompt[1:]]
    assert alone(tuple(prompt), 8) != alone(tuple(changed), 8)


def test_preemption_does_not_change_the_text():
    engine = engine_of(blocks=8, block_size=4)
    for seq_id in range(3):
        engine.add(SequenceSpec(seq_id=seq_id, token_ids=[seq_id + 5] * 4, max_output_tokens=16))
    preempted, texts = 0, {0: [], 1: [], 2: []}
    while engine.has_work:
        result = engine.step()
        preempted += len(result.preempted)
        for seq_id, token in zip(result.seq_ids, result.tokens, strict=True):
            texts[seq_id].append(token)
    assert preempted > 0
    for seq_id, text in texts.items():
        assert text == alone((seq_id + 5,) * 4, 16)[0]


SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, frequency_penalty=-2.0, repetition_penalty=1.05)  # repeats itself


def sampled_spec(seq_id, prompt, **fields):
    fields = {"max_output_tokens": 12, "sampling": SAMPLED, "seed": 11} | fields
    return SequenceSpec(seq_id=seq_id, token_ids=prompt, **fields)


def test_seeded_sampling_is_the_same_alone_and_in_a_batch():
    prompt = list(range(60, 80))
    engine = engine_of()
    engine.add(sampled_spec(0, prompt))
    single = run_out(engine)[0]
    batch = engine_of(batching=ContinuousBatching(token_budget=7), blocks=24)
    for seq_id in range(1, 4):
        batch.add(sampled_spec(seq_id, [seq_id] * 9, seed=seq_id))
        batch.step()
    batch.add(sampled_spec(0, prompt))
    assert run_out(batch)[0] == single


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_resumed_sequence_continues_with_the_same_tokens(cut):
    prompt = list(range(60, 80))
    engine = engine_of()
    engine.add(sampled_spec(0, prompt))
    whole = run_out(engine)[0]
    other = engine_of()
    other.add(sampled_spec(0, prompt + whole[:cut], emitted=cut, max_output_tokens=12 - cut))
    assert run_out(other)[0] == whole[cut:]


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_resumed_sequence_has_the_same_logprobs_as_an_uninterrupted_one(cut):
    """Penalties also count tokens that were generated before."""
    prompt, sampling = (
        list(range(60, 80)),
        replace(SAMPLED, logprobs=True, frequency_penalty=1.5, repetition_penalty=1.3),
    )
    whole = drawn_out(sampled_spec(0, prompt, sampling=sampling))
    assert [token for token, _ in whole] != [token for token, _ in drawn_out(sampled_spec(0, prompt))], "penalties show"
    made = [token for token, _ in whole[:cut]]
    resumed = sampled_spec(0, prompt + made, emitted=cut, max_output_tokens=12 - cut, sampling=sampling)
    assert drawn_out(resumed) == [(token, pytest.approx(logprob, abs=1e-4)) for token, logprob in whole[cut:]]


def drawn_out(spec):
    """Tokens and their logprobs of a sequence alone in its engine."""
    engine = engine_of()
    engine.add(spec)
    results = []
    while engine.has_work:
        results.append(engine.step())
    return [pair for result in results for pair in zip(result.tokens, result.logprobs, strict=True)]


def test_completions_that_share_a_running_prefill_have_the_same_texts_as_alone():
    prompt = list(range(100, 130))
    batch = engine_of(batching=ContinuousBatching(token_budget=7))
    for seq_id in range(4):
        batch.add(sampled_spec(seq_id, prompt, seed=seq_id, cache_salt=b"one request"))
    batch.step()
    batch.cancel(0)  # the sequence that computes the prompt for all is cancelled half-way
    texts = run_out(batch)
    for seq_id in (1, 2, 3):
        engine = engine_of()
        engine.add(sampled_spec(seq_id, prompt, seed=seq_id))
        assert texts[seq_id] == run_out(engine)[seq_id]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_an_output_constrained_to_choices_is_one_of_them(temperature):
    choices = AllowedChoices(((50, 51, 52), (50, 51), (60, 61)))
    engine = engine_of()
    for seed in range(8):
        engine.add(
            sampled_spec(
                seed,
                [9, 8, 7],
                seed=seed,
                constraint=choices,
                stop_ids=frozenset({3}),
                sampling=SamplingParams(temperature=temperature),
            )
        )
    assert {tuple(text[:-1]) for text in run_out(engine).values()} <= set(choices.choices)


def test_a_prefix_found_in_the_cache_does_not_change_the_text():
    prompt = list(range(100, 130))
    engine = engine_of()
    texts = []
    for seq_id in range(2):
        engine.add(SequenceSpec(seq_id=seq_id, token_ids=prompt, max_output_tokens=10, cache_salt=b"t"))
        admitted = engine.step().admitted
        texts.append(run_out(engine)[seq_id])
    assert admitted[0].cached_tokens == 28
    assert texts[0][-9:] == texts[1][-9:]


def test_bfloat16_stays_close_to_float32(tmp_path):
    model, _ = load(write_tiny_model(tmp_path / "tiny"), torch.bfloat16, CPU)
    engine = engine_of(model)
    engine.add(
        SequenceSpec(seq_id=0, token_ids=list(range(30)), max_output_tokens=1, sampling=SamplingParams(logprobs=True))
    )
    result = engine.step(), engine.step()
    with torch.inference_mode():
        exact = naive_logits(tiny(), list(range(30))).log_softmax(-1)
    token, logprob = result[1].tokens[0], result[1].logprobs[0]
    assert logprob == pytest.approx(exact[token].item(), abs=0.15)
    assert exact.max().item() - exact[token].item() < 0.15


def test_kv_blocks_follow_from_the_memory_given():
    shape = tiny().shape
    per_block = 2 * shape.layers * shape.kv_heads * shape.head_size * 4 * 16
    assert blocks_that_fit(10 * per_block + 5, shape, 16, torch.float32) == 10
    assert blocks_that_fit(10 * per_block, shape, 16, torch.bfloat16) == 20
    with pytest.raises(ValueError, match="hold no block"):
        blocks_that_fit(per_block - 1, shape, 16, torch.float32)


@functools.cache
def stories():
    golden = json.loads((STORIES / "golden_greedy.json").read_text(encoding="utf-8"))
    return *load(STORIES / "stories260K.bin", torch.float32, CPU), golden["cases"]


def test_a_trained_model_reproduces_its_golden_text_all_cases_in_one_batch():
    model, card, cases = stories()
    cases = [case for case in cases if "greedy_ids" in case]
    batch = Batch(
        pool=BlockPool(128, 16),
        policy=ContinuousBatching(token_budget=20),
        slots=8,
        context_length=card.context_length,
        eos_ids=frozenset(card.eos_ids),
    )
    engine = TorchEngine(TorchRunner(model, batch.pool.blocks, batch.pool.block_size), batch)
    for seq_id, case in enumerate(cases):
        count = len(case["greedy_ids"]) + (case["stopped_on"] != "length")
        engine.add(SequenceSpec(seq_id=seq_id, token_ids=case["prompt_ids"], max_output_tokens=count))
    texts = run_out(engine)
    for seq_id, case in enumerate(cases):
        ends = [] if case["stopped_on"] == "length" else texts[seq_id][-1:]
        assert texts[seq_id] == case["greedy_ids"] + ends
        assert set(ends) <= set(card.eos_ids)


def test_the_trained_models_tokenizer_agrees_with_its_golden_encodings():
    _, card, cases = stories()
    tokenizer = Tokenizer.from_str(card.tokenizer_json)
    for case in cases:
        text, ids = case.get("prompt", case.get("encode_only")), case.get("prompt_ids", case.get("ids"))
        assert [card.bos_id, *tokenizer.encode(text, add_special_tokens=False).ids] == ids
        assert tokenizer.decode(ids) == case.get("decoded", text)


def test_the_start_draws_for_every_slot_with_every_option():
    """So the memory of such a draw is allocated before any client asks for one."""
    batches = []
    build._warm_up_sampler(lambda logits, draws: batches.append((logits, draws)), torch.zeros(5, 7))
    [(logits, draws)] = batches
    assert len(logits) == len(draws) == 5
    options = draws[0].params
    assert options.top_logprobs == 7
    assert all((options.logprobs, options.top_k, options.top_p < 1.0, options.min_p, options.temperature))
    assert all((options.frequency_penalty, options.repetition_penalty > 1.0, options.logit_bias, draws[0].allowed))
    assert sample(torch.zeros(5, 7), draws)[0] == [0] * 5


def test_a_start_without_memory_for_its_slots_names_the_settings(tmp_path, monkeypatch):
    def without_memory(logits, draws):
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    monkeypatch.setattr(build, "sample", without_memory)
    options = EngineOptions(
        model=str(write_tiny_model(tmp_path / "tiny", context=CONTEXT)), device="cpu", compute="torch", slots=3
    )
    with pytest.raises(ValueError, match=r"3 slots and 512 tokens; set kv_bytes, slots or token_budget lower"):
        build.build_torch_engine(replace(options, kv_blocks=64))
