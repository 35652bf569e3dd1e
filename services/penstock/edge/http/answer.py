"""A generation's events onto an HTTP response: as a stream, or gathered into one body."""

from collections.abc import AsyncIterator

from penstock.edge.http.exchange import Exchange
from penstock.edge.openai.answer import ApiAnswer
from penstock.v1.inference_pb2 import Accepted, Delta, Finished

Events = AsyncIterator[Accepted | Delta | Finished]


async def stream_answer(exchange: Exchange, shape: ApiAnswer, events: Events) -> None:
    """Nothing is sent before `accepted`, so that whoever is refused until then sees it in the status."""
    async for event in events:
        if isinstance(event, Delta):
            if frame := shape.delta(event):
                await exchange.write(frame)
        elif isinstance(event, Accepted):
            await exchange.begin(shape.begin(event), shape.fail)
        else:
            await exchange.end(shape.finish(event))


async def send_answer(exchange: Exchange, shape: ApiAnswer, events: Events) -> None:
    accepted, texts = Accepted(), []
    async for event in events:
        if isinstance(event, Delta):
            texts.append(event.text)
        elif isinstance(event, Accepted):
            accepted = event
        else:
            await exchange.respond(200, shape.whole(accepted, "".join(texts), event))
