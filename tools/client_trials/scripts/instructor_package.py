"""The package `instructor`."""

from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel

from client_trials.scripts.steps import Target, expect, run_steps

_QUESTION = "What is the capital of France?"


class City(BaseModel):
    name: Literal["Paris", "Berlin"]


class Country(BaseModel):
    capital: City
    is_in_europe: bool


def _extract(target: Target, mode: instructor.Mode) -> None:
    client = instructor.from_openai(OpenAI(base_url=target.base_url, api_key=target.api_key, max_retries=0), mode=mode)
    answer = client.chat.completions.create(
        model=target.model,
        messages=[{"role": "user", "content": _QUESTION}],
        response_model=Country,
        max_completion_tokens=64,
        temperature=0,
        max_retries=0,
    )
    expect(isinstance(answer, Country), answer)


def tools(target: Target) -> None:
    _extract(target, instructor.Mode.TOOLS)


def json_schema(target: Target) -> None:
    _extract(target, instructor.Mode.JSON_SCHEMA)


def partial(target: Target) -> None:
    client = instructor.from_openai(OpenAI(base_url=target.base_url, api_key=target.api_key, max_retries=0))
    answers = list(
        client.chat.completions.create_partial(
            model=target.model,
            messages=[{"role": "user", "content": _QUESTION}],
            response_model=Country,
            max_completion_tokens=64,
            temperature=0,
            max_retries=0,
        )
    )
    expect(answers and answers[-1].capital.name and answers[-1].is_in_europe is not None, answers)


if __name__ == "__main__":
    run_steps({"tools": tools, "json_schema": json_schema, "partial stream": partial})
