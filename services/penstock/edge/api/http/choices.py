"""Writers of responses with several choices, as a stream or as one body."""

from penstock.edge.api.http.exchange import Exchange
from penstock.edge.api.openai.choices import ChoicesSerializer, NewSerializer, WholeChoice, whole_response
from penstock.edge.api.openai.common import ApiRequest
from penstock.edge.lifecycle.choices import ChoiceStream
from penstock.v1.inference_pb2 import Accepted, Delta, Finished


async def write_choices(
    exchange: Exchange, request: ApiRequest, new_serializer: NewSerializer, events: ChoiceStream
) -> None:
    """`new_serializer` is called once all choices are accepted."""
    if request.stream:
        await _write_stream(exchange, request, new_serializer, events)
    else:
        await _write_whole(exchange, request, new_serializer, events)


async def _write_stream(
    exchange: Exchange, request: ApiRequest, new_serializer: NewSerializer, events: ChoiceStream
) -> None:
    accepted = await anext(events)
    assert isinstance(accepted, Accepted), "a response begins with `accepted`"
    serializer = ChoicesSerializer(request, new_serializer)
    await exchange.begin(serializer.begin(events.accepted), serializer.fail)
    async for event in events:
        if isinstance(event, Delta):
            if frame := serializer.delta(event):
                await exchange.write(frame)
        elif isinstance(event, Finished):
            frame = serializer.finish(event)
            await (exchange.end(frame) if serializer.is_complete else exchange.write(frame))


async def _write_whole(
    exchange: Exchange, request: ApiRequest, new_serializer: NewSerializer, events: ChoiceStream
) -> None:
    choices = [WholeChoice() for _ in events.sinks]
    async for event in events:
        if isinstance(event, Delta):
            choices[event.choice].deltas.append(event)
        elif not isinstance(event, Accepted):
            choices[event.choice].finished = event
    await exchange.respond(200, whole_response(request, new_serializer, events.accepted[0], choices))
