"""The package `langchain-openai`."""

from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, SecretStr

from client_trials.scripts.steps import Target, expect, run_steps

_QUESTION = "What is the capital of France?"
_WEATHER_QUESTION = "What is the weather in Paris?"


class Capital(BaseModel):
    """The capital of a country."""

    city: Literal["Paris", "Berlin"]


class GetWeather(BaseModel):
    """Return the weather of a city."""

    city: Literal["Paris", "Berlin"]


def _model(target: Target, *, uses_responses: bool = False) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=target.base_url,
        api_key=SecretStr(target.api_key),
        model=target.model,
        max_completion_tokens=64,
        temperature=0,
        max_retries=0,
        use_responses_api=uses_responses,
    )


def chat(target: Target) -> None:
    answer = _model(target).invoke(_QUESTION)
    expect(answer.text and answer.usage_metadata, answer)


def chat_stream(target: Target) -> None:
    chunks = list(_model(target).stream(_QUESTION, stream_usage=True))
    expect("".join(chunk.text for chunk in chunks) and any(chunk.usage_metadata for chunk in chunks), chunks)


def responses(target: Target) -> None:
    answer = _model(target, uses_responses=True).invoke(_QUESTION)
    expect(answer.text, answer)


def structured_output(target: Target) -> None:
    for method in ("json_schema", "function_calling"):
        answer = _model(target).with_structured_output(Capital, method=method).invoke(_QUESTION)
        expect(isinstance(answer, Capital), (method, answer))


def bind_tools(target: Target) -> None:
    answer = _model(target).bind_tools([GetWeather], tool_choice="any", strict=True).invoke(_WEATHER_QUESTION)
    expect(isinstance(answer, AIMessage) and answer.tool_calls[0]["name"] == "GetWeather", answer)
    result = ToolMessage("sunny", tool_call_id=answer.tool_calls[0]["id"])
    last = _model(target).bind_tools([GetWeather]).invoke([HumanMessage(_WEATHER_QUESTION), answer, result])
    expect(last.usage_metadata, last)


def embeddings(target: Target) -> None:
    model = OpenAIEmbeddings(
        base_url=target.base_url,
        api_key=SecretStr(target.api_key),
        model=target.model,
        check_embedding_ctx_length=False,  # otherwise it tokenizes with a tokenizer of OpenAI's models
    )
    vectors = model.embed_documents(["one", "two"])
    expect(len(vectors) == 2 and vectors[0] != vectors[1], [len(each) for each in vectors])


if __name__ == "__main__":
    run_steps(
        {
            "chat": chat,
            "chat stream": chat_stream,
            "responses": responses,
            "with_structured_output": structured_output,
            "bind_tools": bind_tools,
            "embeddings": embeddings,
        }
    )
