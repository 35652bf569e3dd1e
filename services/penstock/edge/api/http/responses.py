"""Writers of generation events to an HTTP response: as a stream or as one body."""

from collections.abc import Callable

from penstock.edge.api.http.exchange import Exchange
from penstock.edge.api.openai.common import ResponseSerializer
from penstock.edge.lifecycle.effects import Emit
from penstock.edge.lifecycle.sinks import ResponseStream
from penstock.v1.inference_pb2 import Accepted, Delta, Finished

NewSerializer = Callable[[], ResponseSerializer]  # called once the response is accepted


async def write_stream(exchange: Exchange, new_serializer: NewSerializer, events: ResponseStream) -> None:
    """Stream the events. The response begins at `accepted`, so that an earlier rejection is an HTTP status.

    While the client reads, deltas are written where they arrive.
    """
    accepted = await anext(events)
    assert isinstance(accepted, Accepted), "a response begins with `accepted`"
    serializer = new_serializer()

    def write_through(delta: Emit) -> bool:
        if not exchange.can_write:
            return False
        if frame := serializer.delta(delta):
            exchange.write_now(frame)
        return True

    await exchange.begin(serializer.begin(accepted), serializer.fail)
    events.write_through = write_through
    async for event in events:
        if isinstance(event, Delta):
            if frame := serializer.delta(event):
                await exchange.write(frame)
        elif isinstance(event, Finished):
            await exchange.end(serializer.finish(event))
        else:  # accepted again: another model, or version of it, answers
            serializer.on_model_changed(events.output_format())


async def write_whole(exchange: Exchange, new_serializer: NewSerializer, events: ResponseStream) -> None:
    accepted, texts = await anext(events), []
    assert isinstance(accepted, Accepted), "a response begins with `accepted`"
    serializer = new_serializer()
    async for event in events:
        if isinstance(event, Delta):
            texts.append(event.text)
            if event.logprobs:
                serializer.collect_logprobs(event)
        elif isinstance(event, Accepted):
            accepted, serializer = event, new_serializer()  # the model was replaced before the first token
        else:
            await exchange.respond(200, serializer.whole(accepted, "".join(texts), event))
