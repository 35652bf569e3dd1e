"""gRPC requests at each public limit and one beyond it."""

from datetime import timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.grpc import conversations
from penstock.edge.api.grpc.messages import count_spec_of, estimate_from_message, spec_of
from penstock.edge.request import limits, tools
from penstock.edge.request import spec as values
from penstock.edge.request.estimate import estimate_from_spec
from penstock.edge.request.spec import ChatInput
from penstock.v1.inference_pb2 import (
    PRIORITY_BATCH,
    TOOL_MODE_NAMED,
    TOOL_MODE_REQUIRED,
    Chat,
    CountTokensRequest,
    GenerateRequest,
    Message,
    Resume,
    Sampling,
    TokenIds,
    Tool,
    ToolCall,
    ToolChoice,
)


def generate_request(**fields):
    return GenerateRequest(**({"text": "hi"} | fields))


def chat(count, content="", role="user"):
    return Chat(messages=[Message(role=role, content=content)] * count)


def ids(count):
    return TokenIds(ids=[7] * count)


FIELD_LIMITS = [
    ("request_id", "a" * limits.REQUEST_ID_CHARS, "a" * (limits.REQUEST_ID_CHARS + 1)),
    ("request_id", "aZ9._:-", "a\n"),
    ("answer_id", "a" * limits.REQUEST_ID_CHARS, "a" * (limits.REQUEST_ID_CHARS + 1)),
    ("model", "m" * limits.MODEL_NAME_BYTES, "m" * (limits.MODEL_NAME_BYTES + 1)),
    ("text", "x" * limits.TEXT_BYTES, "x" * (limits.TEXT_BYTES + 1)),
    ("chat", chat(limits.MESSAGES), chat(limits.MESSAGES + 1)),
    ("chat", chat(1, "x" * limits.TEXT_BYTES), chat(1, "x" * (limits.TEXT_BYTES + 1))),
    ("chat", chat(1, role="r" * limits.ROLE_BYTES), chat(1, role="r" * (limits.ROLE_BYTES + 1))),
    ("token_ids", ids(limits.PROMPT_TOKENS), ids(limits.PROMPT_TOKENS + 1)),
    ("resume", Resume(token_ids=[7] * limits.OUTPUT_TOKENS), Resume(token_ids=[7] * (limits.OUTPUT_TOKENS + 1))),
    ("stop", ["x"] * limits.STOP_STRINGS, ["x"] * (limits.STOP_STRINGS + 1)),
    ("stop", ["x" * limits.STOP_BYTES], ["x" * (limits.STOP_BYTES + 1)]),
    ("max_output_tokens", limits.OUTPUT_TOKENS, limits.OUTPUT_TOKENS + 1),
    ("sampling", Sampling(top_k=limits.TOP_K), Sampling(top_k=limits.TOP_K + 1)),
    ("sampling", Sampling(temperature=0), Sampling(temperature=float("nan"))),
    (
        "sampling",
        Sampling(logit_bias=dict.fromkeys(range(300), 1.0)),
        Sampling(logit_bias=dict.fromkeys(range(301), 1)),
    ),
    ("sampling", Sampling(logit_bias={5: -100.0}), Sampling(logit_bias={5: float("nan")})),
    ("sampling", Sampling(top_logprobs=20), Sampling(top_logprobs=21)),
    ("timeout", Duration(seconds=86_400), Duration(seconds=86_400, nanos=1)),
    ("timeout", Duration(nanos=1), Duration(nanos=-1)),
    ("timeout", Duration(), Duration(seconds=2**63 - 1)),
    ("timeout", Duration(), Duration(seconds=-(2**63))),
]
COUNT_FIELDS = {"text", "chat", "model"}
REPORTED_NAMES = {"text": "input", "chat": "input", "token_ids": "input", "resume": "resume.token_ids"}


@pytest.mark.parametrize(("field", "at_limit", "beyond"), FIELD_LIMITS, ids=[each[0] for each in FIELD_LIMITS])
def test_a_field_at_its_limit_is_accepted_and_beyond_it_is_rejected_by_name(field, at_limit, beyond):
    spec_of(generate_request(**{field: at_limit}))
    with pytest.raises(InvalidArgument) as failure:
        spec_of(generate_request(**{field: beyond}))
    (violation,) = failure.value.field_violations
    assert violation.field.startswith(REPORTED_NAMES.get(field, field))


@pytest.mark.parametrize(("field", "at_limit", "beyond"), [each for each in FIELD_LIMITS if each[0] in COUNT_FIELDS])
def test_counting_tokens_has_the_same_limits(field, at_limit, beyond):
    count_spec_of(CountTokensRequest(**({"text": "hi"} | {field: at_limit})))
    with pytest.raises(InvalidArgument):
        count_spec_of(CountTokensRequest(**({"text": "hi"} | {field: beyond})))


def test_too_many_messages_are_rejected_before_any_is_copied(monkeypatch):
    monkeypatch.delattr(conversations, "Message")
    with pytest.raises(InvalidArgument, match=f"{limits.MESSAGES + 1} entries"):
        spec_of(generate_request(chat=chat(limits.MESSAGES + 1)))


def test_a_request_without_input_is_rejected_with_its_reason():
    with pytest.raises(InvalidArgument) as failure:
        spec_of(GenerateRequest())
    assert failure.value.reason == "INPUT_MISSING"


inputs = st.one_of(
    st.builds(GenerateRequest, text=st.text(max_size=40)),
    st.builds(lambda ids: GenerateRequest(token_ids=TokenIds(ids=ids)), st.lists(st.integers(0, 99), min_size=1)),
    st.builds(
        lambda turns: GenerateRequest(chat=Chat(messages=[Message(role=role, content=text) for role, text in turns])),
        st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(max_size=20)), min_size=1),
    ),
)


@given(inputs, st.one_of(st.none(), st.integers(1, 99)), st.sampled_from([0.0, 1.5]), st.booleans())
def test_an_estimate_is_equal_before_and_after_parsing(request, output, timeout, is_resumed):
    request.model, request.priority, request.request_id = "m", PRIORITY_BATCH, "r"
    request.timeout.FromTimedelta(timedelta(seconds=timeout))
    if output is not None:
        request.max_output_tokens = output
    if is_resumed:
        request.resume.answer_id = "a"
    before, after = estimate_from_message(request), estimate_from_spec(spec_of(request))
    assert before._replace(min_prompt_tokens=after.min_prompt_tokens) == after
    assert before.min_prompt_tokens() == after.min_prompt_tokens()


def test_an_answer_id_of_the_client_names_its_answer_and_continues_none():
    chosen = spec_of(generate_request(answer_id="a"))
    assert (chosen.answer_id, chosen.is_continued) == ("a", False)
    resumed = spec_of(generate_request(answer_id="a", resume=Resume(answer_id="b")))
    assert (resumed.answer_id, resumed.is_continued) == ("b", True)
    with pytest.raises(InvalidArgument, match="n is 2"):
        spec_of(generate_request(answer_id="a", n=2))


def test_tools_calls_and_results_of_a_conversation_reach_the_spec():
    message = Chat(
        messages=[
            Message(role="assistant", tool_calls=[ToolCall(id="c1", name="f", arguments="{}")], reasoning="Hm."),
            Message(role="tool", content="2", tool_call_id="c1", name="f"),
        ],
        tools=[Tool(name="f", description="Does it.", parameters='{"type":"object"}', strict=True)],
        tool_choice=ToolChoice(mode=TOOL_MODE_NAMED, name="f"),
        parallel_tool_calls=False,
    )
    assert spec_of(GenerateRequest(chat=message)).input == ChatInput(
        (
            values.Message("assistant", "", (tools.ToolCall("c1", "f", "{}"),), reasoning="Hm."),
            values.Message("tool", "2", tool_call_id="c1", name="f"),
        ),
        (tools.Tool("f", "Does it.", '{"type":"object"}', strict=True),),
        tools.ToolChoice(tools.ToolMode.NAMED, "f"),
        parallel_tool_calls=False,
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tools": [Tool(name=f"f{index}") for index in range(129)]}, "tools"),
        ({"tools": [Tool(name="a b")]}, "chat.tools"),
        ({"tool_choice": ToolChoice(mode=TOOL_MODE_REQUIRED)}, "chat.tool_choice"),
        ({"tool_choice": ToolChoice(mode=77)}, "chat.tool_choice.mode"),
        ({"messages": [Message(role="assistant", tool_calls=[ToolCall(name="f")] * 129)]}, "input"),
    ],
)
def test_tools_beyond_the_limits_are_rejected_by_name(changes, field):
    message = Chat(**({"messages": [Message(role="user", content="hi")]} | changes))
    with pytest.raises(InvalidArgument) as failure:
        spec_of(GenerateRequest(chat=message))
    assert failure.value.field_violations[0].field == field
