"""The gRPC service `penstock.v1.Inference` over the gateway."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from penstock.chassis.errors import PenstockError
from penstock.chassis.observability.telemetry import current_traceparent
from penstock.chassis.security.identity import is_from_proxy
from penstock.chassis.server.call_metrics import current_call
from penstock.chassis.streams.link import accept_stream
from penstock.edge.api.grpc.callers import caller_in
from penstock.edge.api.grpc.embeddings import FLOATS, embed_response_of, embedding_call_of
from penstock.edge.api.grpc.messages import count_spec_of, estimate_from_message, response_of, spec_of
from penstock.edge.api.grpc.session import SessionHandler
from penstock.edge.choice_calls import generate_choices
from penstock.edge.embedder import embed
from penstock.edge.gateway import Gateway
from penstock.edge.lifecycle.choices import ChoiceStream
from penstock.edge.lifecycle.sinks import ResponseStream
from penstock.edge.regions.drain import RegionDrain
from penstock.edge.request.caller import proxy_time_of, request_id_of
from penstock.edge.request.front_times import front_times
from penstock.edge.request.session_names import session_of
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import inference_pb2 as pb
from penstock.v1.inference_pb2_grpc import InferenceServicer
from penstock.v1.stream_pb2 import Hello


class InferenceService(InferenceServicer):
    """The public API over gRPC."""

    def __init__(self, gateway: Gateway, hello: Hello, drain: RegionDrain) -> None:
        self._gateway = gateway
        self._hello = hello
        self._drain = drain

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        credential, traceparent = _credential(context), current_call.get().continue_trace(request.traceparent)
        request.request_id = request.request_id or request_id_of(context.invocation_metadata() or ())
        with self._gateway.naming(credential):
            admission = self._gateway.admit(
                estimate_from_message(request),
                credential,
                traceparent=traceparent,
                time_left=context.time_remaining(),
                session=lambda: session_of(context.invocation_metadata() or ()),
                front=front_times(_proxy_time(context)),
            )
            spec, headers = spec_of(request), self._gateway.hold_headers(request.model, admission, credential)
            generate: Callable[..., AbstractAsyncContextManager[ResponseStream | ChoiceStream]] = (
                self._gateway.generate if spec.n == 1 else partial(generate_choices, self._gateway)
            )
            generating = generate(
                spec,
                credential,
                admission,
                traceparent=traceparent,
                # Sent before any wait, because a proxy may count cancels before a response as an attack.
                on_admitted=partial(context.send_initial_metadata, headers),
            )
            async with generating as events:
                try:
                    async for event in events:
                        if isinstance(event, pb.Accepted) and (headers := events.limit_headers()):
                            context.set_trailing_metadata(headers)
                        yield response_of(event)
                except PenstockError as error:
                    error.extra_metadata = events.limit_headers()
                    raise

    async def Session(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # reads and writes
        credential = _credential(context)
        async with accept_stream(context, pb.SessionResponse, self._hello) as peer:
            with self._gateway.naming(credential):
                session = session_of(context.invocation_metadata() or ())
                traceparent = current_traceparent.get()
                handler = SessionHandler(self._gateway, peer, credential, traceparent, session, drain=self._drain)
                await handler.run()

    async def CountTokens(self, request: pb.CountTokensRequest, context: Any) -> pb.CountTokensResponse:
        credential, identity_header = caller_in(context)
        with self._gateway.naming(credential):
            await self._gateway.identify(credential, identity_header)
            spec = self._gateway.routed(
                count_spec_of(request), credential, lambda: session_of(context.invocation_metadata() or ())
            )
            return await self._gateway.count_tokens(spec, include_token_ids=request.include_token_ids)

    async def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        credential, traceparent = _credential(context), current_call.get().continue_trace(request.traceparent)
        request.request_id = request.request_id or request_id_of(context.invocation_metadata() or ())
        with self._gateway.naming(credential):
            embedded = await embed(
                self._gateway,
                embedding_call_of(request),
                credential,
                FLOATS,
                traceparent=traceparent,
                time_left=context.time_remaining(),
                session=lambda: session_of(context.invocation_metadata() or ()),
            )
        if embedded.limit_headers:
            context.set_trailing_metadata(embedded.limit_headers)
        return embed_response_of(embedded)

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=await self._gateway.list_models(*caller_in(context)))


def _proxy_time(context: Any) -> str:
    """Return the time that our own proxy wrote into a call; empty without one."""
    return proxy_time_of(context.invocation_metadata() or ()) if is_from_proxy(context) else ""


def _credential(context: Any) -> Credential:
    """Return the credential of a caller. The door before this service has identified the caller."""
    return caller_in(context)[0]
