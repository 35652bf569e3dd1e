"""The driver of the gRPC API, by an SDK client, by sessions of one, or by a plain client."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from penstock.bench.drivers.plain_client import PlainClient
from penstock.bench.load import BenchRequest
from penstock.bench.transcript import CANCELLED, Transcript
from penstock.chassis.errors import PenstockError
from penstock.client import Client, Session

GeneratingClient: TypeAlias = Client | Session | PlainClient


class GrpcDriver:
    """Sends requests through `clients` in rotation."""

    def __init__(self, clients: Sequence[GeneratingClient], clock: Callable[[], float] = time.perf_counter) -> None:
        self._clients = itertools.cycle(clients)
        self._clock = clock

    async def send(self, request: BenchRequest, transcript: Transcript) -> None:
        answer = next(self._clients).generate(request.prompt, **request.options)
        try:
            async with answer:
                async for chunk in answer:
                    transcript.record_chunk(self._clock(), chunk)
                    if request.cancel_after is not None and transcript.tokens >= request.cancel_after:
                        transcript.end(self._clock(), CANCELLED)
                        return  # leaving the answer's block cancels the request
            transcript.finish(self._clock(), answer.finished)
        except PenstockError as error:
            transcript.fail(self._clock(), error)
        finally:
            transcript.is_accepted = answer.is_accepted
