"""One HTTP request at a proxy: what the proxy sends of it, and what the picker answers.

A proxy that holds the body back (BUFFERED) sends it once its headers are answered, and takes the endpoint with the
answer to the body. A proxy that streams in both directions (FULL_DUPLEX_STREAMED) sends everything at once; all of its
messages are answered when the endpoint is known. A proxy that sends no body, or sends it on while it sends it to the
picker, takes the endpoint with the answer to the headers: its requests are placed without model and prompt.
"""

from collections.abc import Iterator, Mapping, Sequence

from penstock.chassis.errors import PenstockError
from penstock.ext_proc.external_processor_pb2 import (
    BUFFERED,
    BUFFERED_PARTIAL,
    FULL_DUPLEX_STREAMED,
    HeaderMap,
    HttpBody,
    ProcessingRequest,
    ProcessingResponse,
)
from penstock.picker.errors import BodyTooLarge
from penstock.picker.exchange import replies
from penstock.picker.exchange.held_bodies import HeldBodies
from penstock.picker.exchange.metadata import served_of, subset_of
from penstock.picker.exchange.usage import UsageReader

STATUS = ":status"


class Exchange:
    """The state of one request. `receive` takes the proxy's messages; the caller picks when `is_complete` is set."""

    def __init__(self, max_body_bytes: int, held: HeldBodies) -> None:
        self._max_body_bytes = max_body_bytes
        self._held = held  # of all exchanges
        self._mode: int = FULL_DUPLEX_STREAMED  # of a proxy that does not state it
        self._response_mode: int = FULL_DUPLEX_STREAMED
        self._is_first = True
        self._pieces: list[bytes] = []
        self._body_bytes = 0
        self._has_trailers = False
        self._has_body = False
        self.headers: Mapping[str, str] = {}
        self.subset: frozenset[str] | None = None
        self.is_complete = False  # all of the request that can be read before the choice is here
        self.is_answered = False  # the proxy has the endpoint, or an error
        self.served = ""  # endpoint whose response arrived; empty: not reported
        self.status = 0  # of the response; 0: none so far
        self.is_ended = False  # the response is complete
        self.usage = UsageReader()

    def __repr__(self) -> str:
        return f"<Exchange {self._body_bytes} bytes, complete: {self.is_complete}, status {self.status}>"

    @property
    def body(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    @property
    def has_body(self) -> bool:
        """Whether the request has a body, seen here or not."""
        return self._has_body

    @property
    def awaits_deadline(self) -> bool:
        """Whether the proxy gives up after a time, which it must be told to extend while the request waits."""
        return self._mode != FULL_DUPLEX_STREAMED

    def receive(self, message: ProcessingRequest) -> Sequence[ProcessingResponse]:
        """Return the answers to send now. Raises BodyTooLarge, BodiesFull and SubsetTooLarge."""
        part = message.WhichOneof("request")
        if self._is_first:
            self._is_first = False
            if message.HasField("protocol_config"):
                self._mode = message.protocol_config.request_body_mode
                self._response_mode = message.protocol_config.response_body_mode
        match part:
            case "request_headers":
                return self._on_headers(message)
            case "request_body":
                return self._on_body(message.request_body)
            case "request_trailers":
                return self._on_trailers()
            case "response_headers":
                return self._on_response_headers(message)
            case "response_body":
                return self._on_response_body(message.response_body)
            case "response_trailers":
                self.is_ended = True
                return (replies.RESPONSE_TRAILERS_CONTINUE,)
            case _:  # of a newer proxy
                return ()

    def picked(self, destinations: Sequence[str]) -> Iterator[ProcessingResponse]:
        """Yield the answers that carry the endpoints. The body is not held any more."""
        text, body = ",".join(destinations), self.body
        self.drop_body()
        self.is_answered = True
        if self._mode in {BUFFERED, BUFFERED_PARTIAL} and self._has_body:
            yield replies.body_with(text)
            return
        yield replies.headers_with(text)
        if self._mode == FULL_DUPLEX_STREAMED and self._has_body:
            yield from replies.request_pieces(body, is_end=not self._has_trailers)
            if self._has_trailers:
                yield replies.TRAILERS_CONTINUE

    def rejected(self, error: PenstockError) -> ProcessingResponse:
        self.is_answered = True
        return replies.rejection(error)

    def drop_body(self) -> None:
        """Forget the body, whose bytes others may hold. Idempotent."""
        self._held.give(self._body_bytes)
        self._pieces, self._body_bytes = [], 0

    def _on_headers(self, message: ProcessingRequest) -> Sequence[ProcessingResponse]:
        self.headers = headers_of(message.request_headers.headers)
        self.subset = subset_of(message.metadata_context)
        self._has_body = not message.request_headers.end_of_stream
        awaits_body = self._mode in {BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX_STREAMED} and self._has_body
        self.is_complete = not awaits_body
        return (replies.HEADERS_CONTINUE,) if awaits_body and self._mode != FULL_DUPLEX_STREAMED else ()

    def _on_body(self, part: HttpBody) -> Sequence[ProcessingResponse]:
        if self.is_answered:  # of a body that is sent on while it is sent here
            return (replies.BODY_CONTINUE,)
        if self._body_bytes + len(part.body) > self._max_body_bytes:
            raise BodyTooLarge(self._max_body_bytes)
        self._held.take(len(part.body))
        self._body_bytes += len(part.body)
        self._pieces.append(part.body)
        # A body that is held back comes as a whole, also if trailers follow or if the proxy holds only a part of it.
        self.is_complete = part.end_of_stream or self._mode != FULL_DUPLEX_STREAMED
        return ()

    def _on_trailers(self) -> Sequence[ProcessingResponse]:
        if self.is_answered:
            return (replies.TRAILERS_CONTINUE,)
        self._has_trailers = self.is_complete = True
        return ()

    def _on_response_headers(self, message: ProcessingRequest) -> Sequence[ProcessingResponse]:
        self.served = served_of(message.metadata_context)
        status = headers_of(message.response_headers.headers).get(STATUS, "")
        self.status = int(status) if status.isdecimal() and len(status) == 3 else 0
        self.is_ended = message.response_headers.end_of_stream
        return (replies.RESPONSE_HEADERS_CONTINUE,)

    def _on_response_body(self, part: HttpBody) -> Sequence[ProcessingResponse]:
        self.usage.feed(part.body)
        self.is_ended = part.end_of_stream
        if self._response_mode == FULL_DUPLEX_STREAMED:
            return (replies.response_piece(part.body, is_end=part.end_of_stream),)
        return (replies.RESPONSE_BODY_CONTINUE,)


def headers_of(headers: HeaderMap) -> Mapping[str, str]:
    """Return the headers by name; the last value of one that is repeated."""
    return {each.key: each.raw_value.decode("latin-1") or each.value for each in headers.headers}
