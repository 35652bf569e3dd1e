"""Calls with several choices: one request of the gateway for each, and one response of all."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import groupby

from penstock.edge.gateway import Gateway
from penstock.edge.lifecycle.choices import ChoiceStream
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.request.choices import choice_specs
from penstock.edge.request.estimate import AdmissionResult
from penstock.edge.request.spec import Prompt, RequestSpec
from penstock.mesh.v1.admission_pb2 import Credential

_seeds = random.SystemRandom()


async def _no_op() -> None:
    pass


def _unnamed(spec: RequestSpec, _choice: int) -> RequestSpec:
    return spec


@asynccontextmanager
async def generate_choices(
    gateway: Gateway,
    spec: RequestSpec,
    credential: Credential,
    admission: AdmissionResult,
    *,
    inputs: Sequence[Prompt] = (),
    traceparent: str = "",
    on_admitted: Callable[[], Awaitable[object]] = _no_op,  # awaited first
    named: Callable[[RequestSpec, int], RequestSpec] = _unnamed,
    on_created: Callable[[RequestContext], None] = lambda _: None,
) -> AsyncIterator[ChoiceStream]:
    """Run `spec.n` requests for each of `inputs`, or for the input of `spec`, as `Gateway.generate` runs one.

    The requests of one prompt tokenize it once, and it is charged with the first of them. Leaving the block before the
    last `finished` cancels all. `named` gives the spec of a choice the id of its answer, and `on_created` receives each
    request before it starts.
    """
    specs = choice_specs(spec, inputs or (spec.input,), spec.n, lambda: _seeds.getrandbits(64))
    stream = ChoiceStream(gateway.memory, len(specs))
    contexts: list[RequestContext] = []

    def cancel() -> None:
        for context in contexts:
            gateway.cancel(context)

    try:
        for each, sink in zip(specs, stream.sinks, strict=True):
            spec = named(each, sink.choice)
            contexts.append(gateway.create(spec, credential, admission, sink, traceparent=traceparent))
            on_created(contexts[-1])
        stream.cancel, stream.describe_token = cancel, contexts[0].describe_token
        stream.limit_headers = lambda: contexts[0].limit_headers
        stream.output_format = lambda: contexts[0].request.plan.output_format
        await on_admitted()
        for _, same_prompt in groupby(contexts, key=lambda context: id(context.spec.input)):
            await gateway.start(*same_prompt)
            if stream.error:
                break
        yield stream
    finally:
        cancel()
        stream.close()
