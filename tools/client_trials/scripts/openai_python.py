"""The client `openai` for Python."""

from typing import Any, Literal, cast

from openai import NotFoundError, OpenAI
from pydantic import BaseModel

from client_trials.scripts.steps import Target, expect, run_steps

_QUESTION = "What is the capital of France?"
_WEATHER_QUESTION: Any = {"role": "user", "content": "What is the weather in Paris?"}
_WEATHER: Any = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Berlin"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Capital(BaseModel):
    city: Literal["Paris", "Berlin"]


def _client(target: Target) -> OpenAI:
    return OpenAI(base_url=target.base_url, api_key=target.api_key, max_retries=0)


def models(target: Target) -> None:
    names = [model.id for model in _client(target).models.list()]
    expect(target.model in names, names)
    expect(_client(target).models.retrieve(target.model).id == target.model, names)


def chat(target: Target) -> None:
    answer = _client(target).chat.completions.create(
        model=target.model, messages=[{"role": "user", "content": _QUESTION}], max_completion_tokens=8, temperature=0
    )
    expect(answer.choices[0].message.content and answer.usage and answer.usage.completion_tokens, answer)


def chat_stream(target: Target) -> None:
    stream = _client(target).chat.completions.create(
        model=target.model,
        messages=[{"role": "user", "content": _QUESTION}],
        max_completion_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    expect("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), chunks)
    expect(chunks[-1].usage and chunks[-1].usage.completion_tokens, chunks[-1])


def n_and_logprobs(target: Target) -> None:
    answer = _client(target).chat.completions.create(
        model=target.model,
        messages=[{"role": "user", "content": _QUESTION}],
        max_completion_tokens=4,
        temperature=0,
        n=2,
        logprobs=True,
        top_logprobs=3,
        seed=7,
    )
    expect([choice.index for choice in answer.choices] == [0, 1], answer)
    for choice in answer.choices:
        entries = choice.logprobs.content if choice.logprobs else None
        expect(entries and len(entries[0].top_logprobs) == 3, choice)


def chat_parse(target: Target) -> None:
    answer = _client(target).chat.completions.parse(
        model=target.model,
        messages=[{"role": "user", "content": _QUESTION}],
        response_format=Capital,
        max_completion_tokens=32,
        temperature=0,
    )
    expect(isinstance(answer.choices[0].message.parsed, Capital), answer)


def tools(target: Target) -> None:
    client, function = _client(target), {"type": "function", "function": _WEATHER}
    with client.chat.completions.stream(
        model=target.model,
        messages=[_WEATHER_QUESTION],
        tools=[cast("Any", function)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_completion_tokens=64,
        temperature=0,
    ) as stream:
        turn = stream.get_final_completion().choices[0].message
    calls = turn.tool_calls or []
    expect([call.function.name for call in calls] == ["get_weather"] and calls[0].function.parsed_arguments, turn)
    result: Any = {"role": "tool", "tool_call_id": calls[0].id, "content": "sunny"}
    answer = client.chat.completions.create(
        model=target.model,
        messages=[_WEATHER_QUESTION, cast("Any", turn), result],
        tools=[cast("Any", function)],
        max_completion_tokens=8,
        temperature=0,
    )
    expect(answer.usage and answer.usage.completion_tokens, answer)


def completions(target: Target) -> None:
    answer = _client(target).completions.create(
        model=target.model, prompt=["Once", "The capital"], max_tokens=4, temperature=0, echo=True
    )
    expect([choice.index for choice in answer.choices] == [0, 1], answer)
    expect(answer.choices[0].text.startswith("Once"), answer)


def responses(target: Target) -> None:
    client = _client(target)
    answer = client.responses.create(
        model=target.model, instructions="Be brief.", input=_QUESTION, max_output_tokens=16, temperature=0
    )
    expect(answer.output_text and answer.usage and answer.usage.output_tokens, answer)


def responses_stream(target: Target) -> None:
    with _client(target).responses.stream(
        model=target.model, input=_QUESTION, text_format=Capital, max_output_tokens=64, temperature=0
    ) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_response()
    expect("response.output_text.delta" in kinds and kinds[-1] == "response.completed", kinds)
    expect(isinstance(answer.output_parsed, Capital), answer)


def responses_by_id(target: Target) -> None:
    client = _client(target)
    first = client.responses.create(
        model=target.model, input=_QUESTION, max_output_tokens=32, temperature=0, background=True, stream=True
    )
    events = list(first)
    response_id = events[-1].response.id  # type: ignore[union-attr]  # the last event has it
    again = list(client.responses.retrieve(response_id, stream=True, starting_after=2))
    expect(again == events[3:], again)
    more = client.responses.create(
        model=target.model, input="And of Spain?", previous_response_id=response_id, max_output_tokens=8, temperature=0
    )
    expect(more.previous_response_id == response_id and more.status in ("completed", "incomplete"), more)
    expect([each.type for each in client.responses.input_items.list(more.id)] == ["message"], more)
    expect(client.responses.cancel(response_id).status != "cancelled", "it has ended before")
    client.responses.delete(response_id)
    try:
        client.responses.retrieve(response_id)
    except NotFoundError as error:
        expect(error.code == "response_unknown", error.body)
    else:
        expect(condition=False, found="a deleted response")


def responses_tools(target: Target) -> None:
    answer = _client(target).responses.create(
        model=target.model,
        input="What is the weather in Paris?",
        tools=[cast("Any", {"type": "function", **_WEATHER})],
        tool_choice="required",
        max_output_tokens=64,
        temperature=0,
    )
    expect(answer.output[0].type == "function_call", answer)


def embeddings(target: Target) -> None:
    answer = _client(target).embeddings.create(model=target.model, input=["one", "two"], dimensions=16)
    expect([len(each.embedding) for each in answer.data] == [16, 16], answer)


def errors(target: Target) -> None:
    try:
        _client(target).chat.completions.create(
            model="no-such-model", messages=[{"role": "user", "content": _QUESTION}]
        )
    except NotFoundError as error:
        expect(error.code == "model_not_found", error.body)
    else:
        expect(condition=False, found="an answer of an unknown model")


if __name__ == "__main__":
    run_steps(
        {
            "models": models,
            "chat": chat,
            "chat stream": chat_stream,
            "n and logprobs": n_and_logprobs,
            "chat parse": chat_parse,
            "tools": tools,
            "completions": completions,
            "responses": responses,
            "responses stream and parse": responses_stream,
            "responses by id": responses_by_id,
            "responses tools": responses_tools,
            "embeddings": embeddings,
            "errors": errors,
        }
    )
