"""Request messages from the options of the SDK."""

import pytest

from penstock.client.request import Options, count_request, generate_request
from penstock.v1.inference_pb2 import (
    PRIORITY_BATCH,
    TOOL_MODE_NAMED,
    TOOL_MODE_REQUIRED,
    Chat,
    GenerateRequest,
    Message,
    Sampling,
    Tool,
    ToolCall,
    ToolChoice,
)

CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def test_text_conversations_and_token_ids_are_distinguished():
    assert generate_request("Hello").text == "Hello"
    assert generate_request("").WhichOneof("input") == "text"
    assert [each.role for each in generate_request(CONVERSATION).chat.messages] == ["system", "user"]
    assert list(generate_request([1, 2, 3]).token_ids.ids) == [1, 2, 3]
    assert count_request(CONVERSATION, "m").chat == Chat(messages=[Message(**each) for each in CONVERSATION])
    assert count_request("Hello", "m").text == "Hello"


def test_options_set_their_fields():
    request = generate_request(
        "Hello",
        model="m",
        max_output_tokens=5,
        temperature=0.0,
        seed=7,
        stop=["\n"],
        timeout=1.5,
        priority=PRIORITY_BATCH,
    )
    assert (request.model, request.max_output_tokens, list(request.stop)) == ("m", 5, ["\n"])
    assert (request.sampling.temperature, request.sampling.seed) == (0.0, 7)
    assert request.sampling.HasField("temperature")
    assert request.timeout.ToMilliseconds() == 1_500
    assert request.priority == PRIORITY_BATCH


def test_none_means_absent():
    request = generate_request("Hello", max_output_tokens=None, temperature=None, seed=None, timeout=None)
    assert request == GenerateRequest(text="Hello", sampling=Sampling())
    assert not request.HasField("max_output_tokens")


def test_an_unknown_option_is_rejected_by_name():
    with pytest.raises(TypeError, match="max_tokens"):
        generate_request("Hello", max_tokens=5)


def test_every_option_has_a_field_of_its_own():
    fields = {each.name for message in (GenerateRequest, Sampling, Chat) for each in message.DESCRIPTOR.fields}
    assert Options.__annotations__.keys() <= fields
    left_out = fields - Options.__annotations__.keys()
    assert left_out == {
        "text",
        "chat",
        "token_ids",
        "sampling",
        "resume",
        "messages",
        "n",
        "answer_id",
    }  # a generation is one answer, whose id it chooses


def test_tools_calls_and_results_of_a_conversation_are_set():
    schema = {"type": "object"}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "name": "f", "arguments": {"a": 1}}]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]
    chat = generate_request(
        turns,
        tools=[{"name": "f", "description": "Does it.", "parameters": schema, "strict": True}, {"name": "g"}],
        tool_choice={"name": "f"},
        parallel_tool_calls=False,
    ).chat
    assert chat == Chat(
        messages=[
            Message(role="assistant", tool_calls=[ToolCall(id="c1", name="f", arguments='{"a": 1}')]),
            Message(role="tool", content="2", tool_call_id="c1"),
        ],
        tools=[Tool(name="f", description="Does it.", parameters='{"type": "object"}', strict=True), Tool(name="g")],
        tool_choice=ToolChoice(mode=TOOL_MODE_NAMED, name="f"),
        parallel_tool_calls=False,
    )
    assert generate_request(turns, tool_choice="required").chat.tool_choice.mode == TOOL_MODE_REQUIRED


def test_tools_need_a_conversation_and_a_choice_that_exists():
    with pytest.raises(ValueError, match="tools need a conversation"):
        generate_request("Hello", tools=[{"name": "f"}])
    with pytest.raises(ValueError, match="TOOL_MODE_ANY"):
        generate_request(CONVERSATION, tool_choice="any")
