"""Calls of the OpenAI API, and readers of its responses."""

import asyncio

from edge_http import TIMEOUT_S

CHUNK_BYTES = 64 << 10
MESSAGES = [{"role": "user", "content": "hi"}]
PATHS = ["/v1/responses", "/v1/chat/completions", "/v1/completions"]
CREATE = {
    "/v1/responses": lambda api, **more: api.responses.create(model="tiny", input="hi", **more),
    "/v1/chat/completions": lambda api, **more: api.chat.completions.create(model="tiny", messages=MESSAGES, **more),
    "/v1/completions": lambda api, **more: api.completions.create(model="tiny", prompt="hi", **more),
}


def text_in(event):
    """Return the text that an event of any of the three streams adds."""
    if hasattr(event, "choices"):
        return "".join(each.text if hasattr(each, "text") else each.delta.content or "" for each in event.choices)
    return event.delta if event.type == "response.output_text.delta" else ""


def text_of(whole):
    if hasattr(whole, "output_text"):
        return whole.output_text
    choice = whole.choices[0]
    return choice.text if hasattr(choice, "text") else choice.message.content


async def next_text(events):
    async for event in events:
        if text := text_in(event):
            return text
    raise AssertionError("the stream ended")


async def next_line(lines):
    """Return the next line that is not empty."""
    async with asyncio.timeout(TIMEOUT_S):
        async for line in lines:
            if line:
                return line
    raise AssertionError("the stream ended")


async def wait_until(is_so):
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so():  # noqa: ASYNC110  # the condition has no event
            await asyncio.sleep(0)
