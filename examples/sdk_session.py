"""Runs several requests on one stream with the SDK: `python examples/sdk_session.py [HOST:PORT ...]`.

PENSTOCK_API_KEY has the key. A session costs less per token than one call per request. With several targets it moves
to another edge if the present one drains or fails, and answers continue there.
"""

import asyncio
import os
import sys

from penstock.client import Client, Session

TARGETS = sys.argv[1:] or ["127.0.0.1:7001"]
PROMPTS = ("Once upon a time", "The quick brown fox", "In a hole in the ground")


async def main() -> None:
    async with (
        Client(*TARGETS, api_key=os.environ["PENSTOCK_API_KEY"]) as client,
        client.session() as session,
        asyncio.TaskGroup() as group,
    ):
        for prompt in PROMPTS:
            group.create_task(complete(session, prompt))


async def complete(session: Session, prompt: str) -> None:
    # Leaving the block before the end cancels the request: the worker frees its KV blocks.
    async with session.generate(prompt, max_output_tokens=32, temperature=0.0) as answer:
        text = await answer.read()
    print(f"{prompt}{text} ({answer.finished.usage.output_tokens} tokens)")


if __name__ == "__main__":
    asyncio.run(main())
