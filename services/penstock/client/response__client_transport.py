"""One attempt at one request, whatever carries it."""

from collections.abc import AsyncGenerator
from typing import Protocol

from penstock.client.progress__client_progress import Event
from penstock.v1.inference_pb2 import GenerateRequest


class Transport(Protocol):
    def attempt(self, request: GenerateRequest, connect_timeout: float) -> AsyncGenerator[Event, None]:
        """Yield what the edge says, up to `finished`; raises PenstockError. Closing it early cancels the request.

        patience: s, for a connection; the request's own timeout bounds the rest.
        """
