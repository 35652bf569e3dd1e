"""The package `pydantic-ai`."""

import asyncio
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from client_trials.scripts.steps import Target, expect, run_steps

_QUESTION = "What is the capital of France?"


class Capital(BaseModel):
    """The capital of a country."""

    city: Literal["Paris", "Berlin"]


def _provider(target: Target) -> OpenAIProvider:
    return OpenAIProvider(base_url=target.base_url, api_key=target.api_key)


def _chat_model(target: Target) -> OpenAIChatModel:
    return OpenAIChatModel(target.model, provider=_provider(target))


def text(target: Target) -> None:
    result = Agent(_chat_model(target), model_settings={"max_tokens": 16, "temperature": 0}).run_sync(_QUESTION)
    expect(result.output, result)


def text_stream(target: Target) -> None:
    async def run() -> list[str]:
        agent = Agent(_chat_model(target), model_settings={"max_tokens": 16, "temperature": 0})
        async with agent.run_stream(_QUESTION) as result:
            return [part async for part in result.stream_text(delta=True)]

    parts = asyncio.run(run())
    expect("".join(parts), parts)


def tool_output(target: Target) -> None:
    agent = Agent(
        _chat_model(target), output_type=ToolOutput(Capital), model_settings={"max_tokens": 64, "temperature": 0}
    )
    expect(isinstance(agent.run_sync(_QUESTION).output, Capital), agent)


def native_output(target: Target) -> None:
    agent = Agent(
        _chat_model(target), output_type=NativeOutput(Capital), model_settings={"max_tokens": 64, "temperature": 0}
    )
    expect(isinstance(agent.run_sync(_QUESTION).output, Capital), agent)


def responses(target: Target) -> None:
    model = OpenAIResponsesModel(target.model, provider=_provider(target))
    agent = Agent(model, output_type=NativeOutput(Capital), model_settings={"max_tokens": 64, "temperature": 0})
    expect(isinstance(agent.run_sync(_QUESTION).output, Capital), agent)


if __name__ == "__main__":
    run_steps(
        {
            "text": text,
            "text stream": text_stream,
            "tool output": tool_output,
            "native output": native_output,
            "responses": responses,
        }
    )
