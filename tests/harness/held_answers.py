"""A program of the SDK that holds its event loop while events of very many answers arrive.

`python held_answers.py ANSWERS HELD_S ADDRESS` writes a line once an edge has accepted all answers, holds its loop at a
line on standard input, reads the answers to their end, and writes how many attempts they took.
"""

import asyncio
import sys
import time

from held_streams import answer, command
from penstock.client import Client


async def read(answers, held_s, address):
    async with Client(address) as client:
        generations = [client.generate("Hello") for _ in range(answers)]
        await asyncio.gather(*(anext(aiter(each)) for each in generations))
        answer("open")
        await command()
        reading = [asyncio.create_task(each.read()) for each in generations]
        await asyncio.sleep(0)  # they wait for events
        time.sleep(held_s)  # noqa: ASYNC251  # holds the loop
        await asyncio.gather(*reading)
        answer(sum(each.attempts for each in generations))


if __name__ == "__main__":
    count, held, target = sys.argv[1:]
    asyncio.run(read(int(count), float(held), target))
