"""Tools on the model by default, whose template knows none: the OpenAI client against a whole mesh."""

import json

import openai
import pytest
from pydantic import BaseModel

from mesh import running_mesh, wait_at_rest


class GetWeather(BaseModel):
    """Returns the weather of a city."""

    city: str


TOOLS = [openai.pydantic_function_tool(GetWeather)]
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


async def test_the_model_by_default_calls_a_required_tool_and_reads_its_result():
    async with running_mesh(engine="torch") as mesh:
        base_url = f"http://{mesh.plan.http}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=mesh.api_key, max_retries=0) as api:
            model = (await api.models.list()).data[0].id
            fixed = {"model": model, "temperature": 0.0, "tools": TOOLS}
            parsed = await api.chat.completions.parse(
                messages=QUESTION, tool_choice="required", max_tokens=256, **fixed
            )
            message = parsed.choices[0].message
            calls = message.tool_calls
            assert parsed.choices[0].finish_reason == "tool_calls"
            assert all(isinstance(call.function.parsed_arguments, GetWeather) for call in calls)
            assert "Paris" in calls[0].function.parsed_arguments.city

            free = (await api.chat.completions.create(messages=QUESTION, max_tokens=64, **fixed)).choices[0].message
            assert free.content or free.tool_calls

            named = {"type": "function", "name": "GetWeather"}
            tools = [{"type": "function", **TOOLS[0]["function"]}]
            async with api.responses.stream(
                model=model, input=QUESTION, temperature=0.0, tools=tools, tool_choice=named, max_output_tokens=256
            ) as stream:
                (item,) = (await stream.get_final_response()).output
            assert json.loads(item.arguments).keys() == {"city"}

            results = [{"role": "tool", "tool_call_id": call.id, "content": "Rain, 11 degrees."} for call in calls]
            answer = await api.chat.completions.create(
                messages=[*QUESTION, message, *results], tool_choice="none", max_tokens=16, **fixed
            )
            assert answer.choices[0].message.content
            with pytest.raises(openai.BadRequestError, match="requires a call"):
                await api.chat.completions.create(model=model, messages=QUESTION, tool_choice="required")
        await wait_at_rest(mesh)
