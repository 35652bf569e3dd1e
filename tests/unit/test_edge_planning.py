"""Planning of a generation from a request spec."""

import zlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from penstock.chassis.errors import InvalidArgument
from penstock.edge.models.loaded_model import LoadedModel, load_model
from penstock.edge.models.planner import MAX_INLINE_MESSAGES, MAX_INLINE_PROMPT_CHARS, RequestPlanner
from penstock.edge.models.planning import plan_generation
from penstock.edge.request.spec import ChatInput, Message, RequestSpec, TextInput, TokenInput
from penstock.edge.text.codec import codec_from
from penstock.mesh.v1.worker_pb2 import ModelCard
from tiny_model import CHAT_TEMPLATE, EOS_ID, tiny_tokenizer

VOCABULARY = 304
TOKENIZER = tiny_tokenizer(VOCABULARY)
CARD = ModelCard(
    name="tiny",
    vocabulary_size=VOCABULARY,
    eos_token_ids=[EOS_ID],
    chat_template=CHAT_TEMPLATE,
    tokenizer_json_zlib=zlib.compress(TOKENIZER.to_str().encode()),
)
MODEL = LoadedModel(
    name="tiny",
    digest="d1",
    context_length=64,
    vocabulary_size=VOCABULARY,
    eos_ids=frozenset({EOS_ID}),
    block_size=16,
    codec=codec_from(CARD),
)
SPEC = RequestSpec(request_id="", model="tiny", input=TextInput("abc"))


def plan(**fields):
    return plan_generation(
        replace(SPEC, **fields),
        MODEL,
        form=None,
        now=datetime(2026, 1, 1, tzinfo=UTC),
        default_output_tokens=20,
        draw_seed=lambda: 42,
    )


class OneModelCatalog:
    """Has `model` for every request."""

    def __init__(self, model):
        self._model = model

    async def choose(self, name, version):
        return self._model


class CountingPools:
    """Runs work at once and counts the calls."""

    def __init__(self):
        self.runs = 0

    async def run(self, size, work):
        self.runs += 1
        return work()


@pytest.mark.parametrize(
    ("messages", "renders_inline", "runs"),
    [
        ([Message("user", "hi")], True, 0),
        ([Message("user", "hi")] * 2, False, 1),
        ([Message("user", "i")] * (MAX_INLINE_MESSAGES + 1), True, 1),
        ([Message("user", "i" * (MAX_INLINE_PROMPT_CHARS + 1))], True, 1),
    ],
)
async def test_a_short_conversation_of_a_fast_template_needs_no_thread(messages, renders_inline, runs):
    model, pools = replace(MODEL, context_length=4_096, renders_inline=renders_inline), CountingPools()
    planner = RequestPlanner(OneModelCatalog(model), pools, default_output_tokens=20)
    await planner.plan(replace(SPEC, input=ChatInput(tuple(messages))), 100)
    assert pools.runs == runs


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% for i in range(9999) %}{% endfor %}"])
def test_a_template_that_rejects_or_takes_long_is_not_rendered_inline(template):
    card = ModelCard()
    card.CopyFrom(CARD)
    card.chat_template = template
    assert not load_model(card).renders_inline


def ids(text):
    return TOKENIZER.encode(text).ids


def test_raw_text_is_tokenized_unchanged():
    assert list(plan().prompt_ids) == ids("abc")


def test_there_are_no_more_likeliest_tokens_than_tokens_of_the_model():
    assert plan(logprobs=True, top_logprobs=20).sampling.top_logprobs == 20
    model = replace(MODEL, vocabulary_size=5)
    small = plan_generation(
        replace(SPEC, input=TokenInput((1,)), logprobs=True, top_logprobs=20),
        model,
        form=None,
        now=datetime(2026, 1, 1, tzinfo=UTC),
        default_output_tokens=20,
        draw_seed=lambda: 42,
    )
    assert small.sampling.top_logprobs == 5


def test_a_plan_describes_the_tokens_of_its_model():
    describe = plan().describe_token
    assert describe(ids("a")[0]) == ("a", b"a")
    assert describe(EOS_ID).encoded is None
    first_byte, *_ = ids("é")
    assert describe(first_byte) in {("é", "é".encode()), ("\\xc3", b"\xc3")}


def test_a_bias_is_of_an_id_of_the_vocabulary():
    assert dict(plan(logit_bias=((303, 2.0),)).sampling.logit_bias) == {303: 2.0}
    with pytest.raises(InvalidArgument, match="token id 304 of logit_bias is not in the model's vocabulary of 304"):
        plan(logit_bias=((304, 2.0),))


def test_a_conversation_ends_with_the_start_of_the_assistants_turn():
    chat = plan(input=ChatInput((Message("user", "hi"),)))
    assert TOKENIZER.decode(list(chat.prompt_ids), skip_special_tokens=False).endswith("<|im_start|>assistant\n")


def test_an_answer_without_a_limit_gets_the_default_or_the_rest_of_the_context():
    assert plan().max_output_tokens == 20
    assert plan(input=TextInput("x" * 60)).max_output_tokens == 4


def test_a_requested_limit_is_granted_or_rejected_but_never_reduced():
    assert plan(max_output_tokens=61).max_output_tokens == 61
    with pytest.raises(InvalidArgument, match="3 prompt tokens and 62 output tokens do not fit") as failure:
        plan(max_output_tokens=62)
    assert (failure.value.reason, failure.value.metadata["context_length"]) == ("PROMPT_TOO_LONG", "64")


def test_a_prompt_that_fills_the_context_leaves_no_answer():
    assert plan(input=TextInput("x" * 63)).max_output_tokens == 1
    with pytest.raises(InvalidArgument) as failure:
        plan(input=TextInput("x" * 64))
    assert failure.value.field_violations[0].field == "input"


def test_a_seed_is_drawn_once_where_none_is_given_and_zero_is_a_seed():
    assert plan().sampling.seed == 42
    assert plan(seed=0).sampling.seed == 0
    assert plan(seed=0).sampling.HasField("seed")


def test_every_sampling_parameter_reaches_the_worker():
    fields = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.5,
        "logprobs": True,
    }
    sampling = plan(**fields).sampling
    assert {name: getattr(sampling, name) for name in fields} == fields


def test_an_ignored_end_of_sequence_does_not_end_the_answer():
    assert plan().eos_ids == {EOS_ID}
    assert plan(ignore_eos=True).eos_ids == frozenset()


def test_a_resumed_answer_continues_in_the_middle_of_a_stop_string():
    resumed = plan(resume_ids=tuple(ids("ab")), stop=("bcd",))
    assert resumed.resumed_stop == ""
    deltas = [resumed.detokenizer.push(token_id) for token_id in ids("cd")]
    assert [delta.stop_string for delta in deltas] == ["", "bcd"]
    assert "".join(delta.text for delta in deltas) == ""


def test_a_resumed_answer_reports_a_stop_string_that_it_contains():
    assert plan(resume_ids=tuple(ids("xyz")), stop=("y",)).resumed_stop == "y"


@pytest.mark.parametrize("fields", [{"resume_ids": (VOCABULARY,)}, {"input": TokenInput((VOCABULARY,))}])
def test_ids_outside_the_vocabulary_are_rejected(fields):
    with pytest.raises(InvalidArgument) as failure:
        plan(**fields)
    assert failure.value.reason == "TOKEN_UNKNOWN"
