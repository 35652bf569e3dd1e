"""The default model, as far as its package is installed: real weights, real tokenizer, real chat template."""

import functools

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from penstock.worker.engine.build import build_engine
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.options import EngineOptions

QUESTION = "What is the capital of France?"


@functools.cache
def engine_and_card():
    return build_engine(EngineOptions(dtype="float32", kv_blocks=512, device="cpu"))


def test_the_card_equals_that_of_the_models_authors():
    _, card = engine_and_card()
    assert (card.name, card.context_length, card.vocab_size) == ("SmolLM2-135M-Instruct", 8192, 49152)
    assert (card.eos_ids, card.add_bos, card.plain_ids()) == ((0, 2), False, range(17, 49152))
    tokenizer = Tokenizer.from_str(card.tokenizer_json)
    assert tokenizer.encode("<|im_start|>user\n2026 gates", add_special_tokens=False).tokens == [
        *("<|im_start|>", "user", "Ċ", "2", "0", "2", "6"),  # digits one by one
        *("Ġgates",),
    ]


def test_the_default_model_answers_paris_as_the_capital_of_france():
    engine, card = engine_and_card()
    template = ImmutableSandboxedEnvironment().from_string(card.chat_template)
    tokenizer = Tokenizer.from_str(card.tokenizer_json)
    prompt = template.render(messages=[{"role": "user", "content": QUESTION}], add_generation_prompt=True)
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    engine.add(SequenceSpec(seq_id=1, token_ids=ids, max_output_tokens=32))
    tokens = []
    while engine.has_work:
        tokens += engine.step().tokens
    assert tokenizer.decode(tokens) == "The capital of France is Paris."
    assert tokens[-1] in card.eos_ids
