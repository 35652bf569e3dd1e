"""Writers of generation events to an HTTP response: as a stream or as one body."""

from penstock.edge.api.http.exchange import Exchange
from penstock.edge.api.openai.common import ResponseSerializer
from penstock.edge.lifecycle.effects import Emit
from penstock.edge.lifecycle.sinks import ResponseStream
from penstock.v1.inference_pb2 import Accepted, Delta


async def write_stream(exchange: Exchange, serializer: ResponseSerializer, events: ResponseStream) -> None:
    """Stream the events. The response begins at `accepted`, so that an earlier rejection is an HTTP status.

    While the client reads, deltas are written where they arrive.
    """
    has_begun = False

    def write_through(delta: Emit) -> bool:
        if not exchange.can_write:
            return False
        if frame := serializer.delta(delta):
            exchange.write_now(frame)
        return True

    async for event in events:
        if isinstance(event, Delta):
            if frame := serializer.delta(event):
                await exchange.write(frame)
        elif isinstance(event, Accepted):
            if not has_begun:  # sent again if the model was replaced before the first token
                has_begun = True
                await exchange.begin(serializer.begin(event), serializer.fail)
                events.write_through = write_through
        else:
            await exchange.end(serializer.finish(event))


async def write_whole(exchange: Exchange, serializer: ResponseSerializer, events: ResponseStream) -> None:
    accepted, texts = Accepted(), []
    async for event in events:
        if isinstance(event, Delta):
            texts.append(event.text)
            if event.logprobs:
                serializer.collect_logprobs(event)
        elif isinstance(event, Accepted):
            accepted = event
        else:
            await exchange.respond(200, serializer.whole(accepted, "".join(texts), event))
