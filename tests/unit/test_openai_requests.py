import json

import pytest

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.fields import parse_body
from penstock.edge.api.openai.chat import parse_chat
from penstock.edge.api.openai.completions import parse_completion
from penstock.edge.api.openai.responses.response import parse_response
from penstock.edge.request import limits
from penstock.edge.request.spec import ChatInput, Message, RequestSpec, TextInput, TokenInput
from penstock.mesh.forms import JSON_OBJECT, Choices, JsonSchema, Lark, Regex
from penstock.v1.inference_pb2 import Priority

GREETING = [{"role": "user", "content": "hi"}]


def body(members):
    return parse_body(json.dumps(members).encode())


def chat(**members):
    return parse_chat(body({"messages": GREETING} | members), "r1")


def completion(**members):
    return parse_completion(body({"prompt": "hi"} | members), "r1")


def response(**members):
    return parse_response(body({"input": "hi"} | members), "r1")


ENDPOINTS = [chat, completion, response]


def rejection_of(call, **members):
    with pytest.raises(InvalidArgument) as failure:
        call(**members)
    return failure.value.message, failure.value.field_violations[0].field


@pytest.mark.parametrize(
    ("call", "limit", "prompt"),
    [
        (chat, "max_completion_tokens", ChatInput((Message("user", "hi"),))),
        (completion, "max_tokens", TextInput("hi")),
        (response, "max_output_tokens", ChatInput((Message("user", "hi"),))),
    ],
)
def test_every_sampling_parameter_reaches_the_spec(call, limit, prompt):
    members = {
        "model": "m",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "presence_penalty": -1,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.1,
        "seed": 7,
        "stop": ["\n", "END"],
        "ignore_eos": True,
        "explain": True,
        "service_tier": "flex",
        "stream": True,
        limit: 9,
    }
    request = call(**members)
    assert request.stream
    assert request.spec == RequestSpec(
        request_id="r1",
        model="m",
        input=prompt,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        presence_penalty=-1.0,
        frequency_penalty=1.5,
        repetition_penalty=1.1,
        seed=7,
        max_output_tokens=9,
        stop=("\n", "END"),
        ignore_eos=True,
        explain=True,
        priority=Priority.PRIORITY_BATCH,
    )


@pytest.mark.parametrize("call", ENDPOINTS)
def test_unknown_fields_and_nulls_are_ignored(call):
    nulls = dict.fromkeys(("temperature", "seed", "stop", "stream", "tools", "n", "logprobs", "metadata", "text"))
    assert call(**nulls, store=False, user="u", guided_nothing={"a": [1]}, parallel_tool_calls=True) == call()


def test_a_chat_without_a_limit_has_none_and_a_completion_has_the_api_s_sixteen():
    assert chat().spec.max_output_tokens is None
    assert response().spec.max_output_tokens is None
    assert completion().spec.max_output_tokens == 16


def test_the_newer_name_of_the_limit_wins_over_the_older():
    assert chat(max_tokens=5).spec.max_output_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=6).spec.max_output_tokens == 6
    assert rejection_of(chat, max_tokens=0)[1] == "max_tokens"
    assert rejection_of(chat, max_tokens=5, max_completion_tokens=0)[1] == "max_completion_tokens"


def test_contents_are_strings_or_lists_of_text_parts_in_any_of_their_names():
    parts = [{"type": kind, "text": kind} for kind in ("text", "input_text", "output_text")]
    parts.append({"type": "refusal", "refusal": "no"})
    messages = [{"role": "developer", "content": "short"}, {"role": "assistant", "content": parts}]
    expected = (Message("system", "short"), Message("assistant", "text\ninput_text\noutput_text\nno"))
    assert chat(messages=messages).spec.input == ChatInput(expected)
    assert response(input=messages).spec.input == ChatInput(expected)


def test_instructions_come_first_and_earlier_answers_can_be_sent_back_as_they_came():
    earlier = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Paris.", "annotations": [], "logprobs": []}],
    }
    request = response(instructions="Be brief.", input=[earlier, {"role": "user", "content": "And of Spain?"}])
    assert request.instructions == "Be brief."
    assert request.spec.input == ChatInput(
        (Message("system", "Be brief."), Message("assistant", "Paris."), Message("user", "And of Spain?"))
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", TextInput("a")),
        (["a"], TextInput("a")),
        ([1, 2], TokenInput((1, 2))),
        ([[1, 2]], TokenInput((1, 2))),
    ],
)
def test_a_prompt_is_a_string_or_token_ids_or_a_list_of_one_of_them(prompt, expected):
    assert completion(prompt=prompt).spec.input == expected


@pytest.mark.parametrize(
    ("call", "members", "field", "expected"),
    [
        (completion, {"prompt": [1, "b"]}, "prompt[1]", "must be a token id, not the string 'b'"),
        (completion, {"prompt": []}, "prompt", "has 0 token ids; allowed are 1 to"),
        (completion, {"prompt": None}, "prompt", "is missing"),
        (completion, {"prompt": {}}, "prompt", "must be a string or a list of token ids, not an object"),
        (chat, {"messages": None}, "messages", "is missing"),
        (chat, {"messages": []}, "messages", "has 0 messages; allowed are 1 to 4096"),
        (chat, {"messages": "hi"}, "messages", "must be a list of messages, not the string 'hi'"),
        (chat, {"messages": ["hi"]}, "messages[0]", "must be an object with role and content"),
        (chat, {"messages": [{"content": "x"}]}, "messages[0].role", "is missing"),
        (chat, {"messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
        (chat, {"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "a list of text parts, not 3"),
        (
            chat,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "is the string 'image_url'; this server accepts text only",
        ),
        (response, {"input": None}, "input", "is missing"),
        (response, {"input": 3}, "input", "must be a string or a list of messages, not 3"),
        (response, {"input": [{"type": "item_reference"}]}, "input[0].type", "accepts message, function_call,"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_named_by_its_path(call, members, field, expected):
    message, named = rejection_of(call, **members)
    assert named == field
    assert expected in message


@pytest.mark.parametrize("call", ENDPOINTS)
@pytest.mark.parametrize(
    ("members", "field", "expected"),
    [
        ({"temperature": "hot"}, "temperature", "temperature must be a number, not the string 'hot'"),
        ({"temperature": True}, "temperature", "not true"),
        ({"temperature": 2.5}, "temperature", "temperature is 2.5; allowed are 0 to 2.0"),
        ({"top_k": 1.5}, "top_k", "top_k must be an integer, not 1.5"),
        ({"stream": "yes"}, "stream", "stream must be true or false"),
        ({"stop": 3}, "stop", "stop must be a string or a list of strings, not 3"),
        ({"stop": ["a", 3]}, "stop[1]", "must be a string, not 3"),
        ({"stop": ""}, "stop", "has a string of 0 bytes"),
        ({"model": ["m"]}, "model", "model must be a string, not a list of 1"),
        ({"service_tier": "gold"}, "service_tier", "allowed are auto, default, flex, priority"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(call, members, field, expected):
    message, named = rejection_of(call, **members)
    assert named == field
    assert expected in message


@pytest.mark.parametrize(
    ("call", "members", "field"),
    [
        (chat, {"modalities": ["text", "audio"]}, "modalities"),
        (chat, {"web_search_options": {}}, "web_search_options"),
        (chat, {"moderation": {}}, "moderation"),
        (completion, {"suffix": "x"}, "suffix"),
        (response, {"n": 2}, "n"),
        (response, {"conversation": "conv_1"}, "conversation"),
    ],
)
def test_unsupported_fields_are_rejected_if_they_request_something(call, members, field):
    message, named = rejection_of(call, **members)
    assert named == field
    assert "not supported" in message


SCHEMA = {"type": "integer"}
INTEGER = JsonSchema('{"type":"integer"}')


@pytest.mark.parametrize(
    ("parsed", "form"),
    [
        (chat(response_format={"type": "json_object"}), JSON_OBJECT),
        (chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}), INTEGER),
        (completion(response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}), INTEGER),
        (response(text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}), INTEGER),
        (response(text={"format": {"type": "json_object"}}), JSON_OBJECT),
        (chat(structured_outputs={"json": SCHEMA}), INTEGER),
        (chat(structured_outputs={"json": '{"type":"integer"}', "regex": None}), INTEGER),
        (chat(structured_outputs={"json_object": True}), JSON_OBJECT),
        (completion(structured_outputs={"regex": "a+"}), Regex("a+")),
        (completion(structured_outputs={"choice": ["a", "b"]}), Choices(("a", "b"))),
        (completion(structured_outputs={"grammar": 'start: "a"'}), Lark('start: "a"')),
        (chat(response_format={"type": "text"}), None),
    ],
)
def test_a_form_is_read_in_each_shape_of_the_apis(parsed, form):
    assert parsed.spec.form == form


@pytest.mark.parametrize(
    ("call", "members", "field", "expected"),
    [
        (chat, {"response_format": {"type": "xml"}}, "response_format.type", "allowed are text, json_object"),
        (chat, {"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "a JSON schema"),
        (response, {"text": {"format": {"type": "json_schema", "schema": []}}}, "text.format.schema", "a JSON schema"),
        (chat, {"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "exactly one"),
        (chat, {"structured_outputs": {"choice": [1]}}, "structured_outputs", "exactly one"),
        (
            chat,
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "together",
        ),
    ],
)
def test_a_form_that_cannot_be_read_is_named_by_its_path(call, members, field, expected):
    message, named = rejection_of(call, **members)
    assert named == field
    assert expected in message


def test_unsupported_fields_that_request_nothing_are_accepted():
    assert chat(n=1, logprobs=False, tools=[], logit_bias={}, response_format={"type": "text"}) == chat()
    assert completion(best_of=1, echo=False, suffix="", top_logprobs=0) == completion()
    assert response(background=False, text={"format": {"type": "text"}, "verbosity": "low"}) == response()


@pytest.mark.parametrize("call", [chat, completion])
def test_a_bias_has_the_id_of_its_token_as_name(call):
    assert call(logit_bias={"50": -100, "7": 2.5}).spec.logit_bias == ((7, 2.5), (50, -100.0))
    wrong = [{"a": 1}, {"-1": 1}, {"1.5": 1}, {"٣": 1}, {"1" * 5_000: 1}, {"5": "x"}, {"5": 101}, [5]]
    for biases in [*wrong, dict.fromkeys(map(str, range(limits.LOGIT_BIASES + 1)), 1)]:
        assert rejection_of(call, logit_bias=biases)[1].split(".")[0] == "logit_bias"


def test_log_probabilities_are_requested_as_in_each_endpoint_of_the_api():
    def options(request):
        return request.spec.logprobs, request.spec.top_logprobs

    assert options(chat(logprobs=True, top_logprobs=20)) == (True, 20)
    assert options(chat(logprobs=True)) == (True, 0)
    assert options(completion(logprobs=0)) == (True, 0)
    assert options(completion(logprobs=3, top_logprobs=9)) == (True, 3)
    assert options(response(include=["message.output_text.logprobs"], top_logprobs=2)) == (True, 2)
    assert options(response(top_logprobs=2)) == (True, 2)
    assert {options(each(logprobs=None, top_logprobs=0, include=[])) for each in ENDPOINTS} == {(False, 0)}


@pytest.mark.parametrize(
    ("call", "members", "field"),
    [
        (chat, {"top_logprobs": 3}, "top_logprobs"),
        (chat, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (chat, {"logprobs": 5}, "logprobs"),
        (completion, {"logprobs": 21}, "logprobs"),
        (completion, {"logprobs": -1}, "logprobs"),
        (completion, {"logprobs": True}, "logprobs"),
        (response, {"top_logprobs": 21}, "top_logprobs"),
        (response, {"include": "message.output_text.logprobs"}, "include"),
    ],
)
def test_wrong_options_of_log_probabilities_are_named(call, members, field):
    assert rejection_of(call, **members)[1] == field


def test_a_list_of_prompts_is_of_texts_and_of_token_ids():
    assert completion(prompt=["a", "b"]).inputs == (TextInput("a"), TextInput("b"))
    assert completion(prompt=[[1, 2], "b", [3]]).inputs == (TokenInput((1, 2)), TextInput("b"), TokenInput((3,)))
    single = [completion(prompt=each) for each in ("a", ["a"])]
    assert all(
        (each.inputs, each.spec.input, each.has_several_choices) == ((), TextInput("a"), False) for each in single
    )
    assert [completion(prompt=each).spec.input for each in ([1, 2], [[1, 2]])] == [TokenInput((1, 2))] * 2


def test_the_answers_to_each_prompt_are_the_best_of_those_generated():
    assert (chat(n=3).spec.n, chat(n=3).answers, chat().answers) == (3, 3, 1)
    best = completion(n=2, best_of=5)
    assert (best.spec.n, best.answers, best.spec.logprobs, best.generated_spec.logprobs) == (5, 2, False, True)
    assert completion(best_of=1) == completion()
    assert not completion(n=2, best_of=2).generated_spec.logprobs


@pytest.mark.parametrize(
    ("call", "members", "field"),
    [
        (chat, {"n": 0}, "n"),
        (chat, {"n": limits.CHOICES + 1}, "n"),
        (chat, {"n": True}, "n"),
        (completion, {"n": 3, "best_of": 2}, "n"),
        (completion, {"n": 0}, "n"),
        (completion, {"best_of": 0}, "best_of"),
        (completion, {"best_of": limits.CHOICES + 1}, "best_of"),
        (completion, {"best_of": 2, "stream": True}, "best_of"),
        (completion, {"prompt": ["a"] * 65, "n": 2}, "prompt"),
        (completion, {"prompt": ["a", 3]}, "prompt[1]"),
        (completion, {"prompt": [[1], ["x"]]}, "prompt[1][0]"),
        (completion, {"prompt": ["a", []]}, "prompt"),
        (completion, {"echo": True, "logprobs": 0}, "echo"),
    ],
)
def test_wrong_numbers_of_answers_and_prompts_are_named(call, members, field):
    assert rejection_of(call, **members)[1] == field


def test_responses_have_no_biases_as_in_the_api():
    assert rejection_of(response, logit_bias={"5": 1})[1] == "logit_bias"


def test_stream_options_select_where_usage_is_sent():
    assert not chat().include_usage
    parsed = chat(stream_options={"include_usage": True})
    assert (parsed.include_usage, parsed.continuous_usage) == (True, False)
    parsed = completion(stream_options={"continuous_usage_stats": True})
    assert (parsed.include_usage, parsed.continuous_usage) == (True, True)


def test_signed_seeds_of_the_api_become_unsigned():
    assert chat(seed=-1).spec.seed == 2**64 - 1
    assert chat(seed=2**64 - 1).spec.seed == 2**64 - 1
    assert chat(seed=-(2**63)).spec.seed == 2**63
    assert rejection_of(chat, seed=-(2**63) - 1)[1] == "seed"
    assert rejection_of(chat, seed=2**64)[1] == "seed"


def test_a_top_k_of_minus_one_means_all_tokens():
    assert chat(top_k=-1).spec.top_k == 0
    assert rejection_of(chat, top_k=-2)[1] == "top_k"


def test_metadata_is_accepted_up_to_the_limits_of_the_api():
    most = {str(n): "v" for n in range(limits.METADATA_PAIRS)}
    longest = {"k" * limits.METADATA_KEY_CHARS: "v" * limits.METADATA_VALUE_CHARS}
    assert response(metadata=most).metadata == most
    assert response(metadata=longest).metadata == longest
    for beyond in (
        most | {"more": "v"},
        {"k" * (limits.METADATA_KEY_CHARS + 1): "v"},
        {"k": "v" * (limits.METADATA_VALUE_CHARS + 1)},
        {"k": 1},
    ):
        assert rejection_of(response, metadata=beyond)[1] == "metadata"


def test_a_message_never_quotes_a_long_value():
    message, _ = rejection_of(chat, temperature="x" * 10_000)
    assert message == "temperature must be a number, not a string of 10000 characters"
