"""Writers of generation events to an HTTP response: as a stream or as one body."""

from collections.abc import AsyncIterator

from penstock.edge.api.http.exchange import Exchange
from penstock.edge.api.openai.common import ResponseSerializer
from penstock.v1.inference_pb2 import Accepted, Delta, Finished

Events = AsyncIterator[Accepted | Delta | Finished]


async def write_stream(exchange: Exchange, serializer: ResponseSerializer, events: Events) -> None:
    """Stream the events. The response begins at `accepted`, so that an earlier rejection is an HTTP status."""
    has_begun = False
    async for event in events:
        if isinstance(event, Delta):
            if frame := serializer.delta(event):
                await exchange.write(frame)
        elif isinstance(event, Accepted):
            if not has_begun:  # sent again if the model was replaced before the first token
                has_begun = True
                await exchange.begin(serializer.begin(event), serializer.fail)
        else:
            await exchange.end(serializer.finish(event))


async def write_whole(exchange: Exchange, serializer: ResponseSerializer, events: Events) -> None:
    accepted, texts = Accepted(), []
    async for event in events:
        if isinstance(event, Delta):
            texts.append(event.text)
        elif isinstance(event, Accepted):
            accepted = event
        else:
            await exchange.respond(200, serializer.whole(accepted, "".join(texts), event))
