"""The package `litellm` as a client."""

from typing import Any

import litellm

from client_trials.scripts.steps import Target, expect, run_steps

_MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


def _arguments(target: Target) -> dict[str, Any]:
    return {"model": f"openai/{target.model}", "api_base": target.base_url, "api_key": target.api_key}


def completion(target: Target) -> None:
    answer = litellm.completion(**_arguments(target), messages=_MESSAGES, max_tokens=8, num_retries=0, temperature=0)
    expect(answer.choices[0].message.content and answer.usage.completion_tokens, answer)


def stream(target: Target) -> None:
    chunks = list(
        litellm.completion(
            **_arguments(target),
            messages=_MESSAGES,
            max_tokens=8,
            num_retries=0,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    expect("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), chunks)


def tools(target: Target) -> None:
    function = {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Berlin"]}}, "required": ["city"]},
    }
    answer = litellm.completion(
        **_arguments(target),
        messages=_MESSAGES,
        tools=[{"type": "function", "function": function}],
        tool_choice="required",
        max_tokens=64,
        num_retries=0,
        temperature=0,
    )
    calls = answer.choices[0].message.tool_calls
    expect(calls and calls[0].function.name == "get_weather", answer)


def responses(target: Target) -> None:
    answer = litellm.responses(
        **_arguments(target), input="What is the capital of France?", max_output_tokens=16, temperature=0
    )
    expect(answer.output, answer)


def embedding(target: Target) -> None:
    answer = litellm.embedding(**_arguments(target), input=["one", "two"])
    expect(len(answer.data) == 2, answer)


if __name__ == "__main__":
    run_steps(
        {
            "completion": completion,
            "stream": stream,
            "tools": tools,
            "responses": responses,
            "embedding": embedding,
        }
    )
