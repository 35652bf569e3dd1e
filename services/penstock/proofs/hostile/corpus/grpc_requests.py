"""gRPC at the doors: strangers, wrong keys, forged metadata, and fields that a valid key does not make valid."""

import math
from collections.abc import Callable, Iterator

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from penstock.proofs.hostile.corpus.case import CaseOutcome, HostileCase, call_outcome, succeeded
from penstock.proofs.hostile.corpus.http_requests import FORGED_HEADERS, wrong_keys
from penstock.proofs.hostile.ports import GRPC_DOORS, Port
from penstock.proofs.hostile.target import HostileTarget
from penstock.proofs.hostile.wire.grpc_call import call, framed
from penstock.proofs.hostile.wire.http2 import Headers
from penstock.v1.inference_pb2 import (
    Chat,
    CountTokensRequest,
    EmbedInput,
    EmbedRequest,
    GenerateRequest,
    ListModelsRequest,
    Resume,
    Sampling,
    SessionGenerate,
    SessionRequest,
    TokenIds,
)
from penstock.v1.inference_pb2 import Message as ChatMessage
from penstock.v1.stream_pb2 import Hello

SERVICE = "/penstock.v1.Inference/"


def grpc_request_cases(target: HostileTarget) -> Iterator[HostileCase]:
    generate = GenerateRequest(model=target.model, text="Say one word.", max_output_tokens=1)
    for port in target.ports_of(*GRPC_DOORS):
        for method, message in _requests(target.model):
            yield _case("gRPC identity", f"no key for {method}", port, method, [message])
        for number, (name, value) in enumerate(FORGED_HEADERS):
            headers = [(name.lower(), value)]
            yield _case("gRPC identity", f"forged {name} ({number})", port, "Generate", [generate], headers=headers)
        for name, forged in wrong_keys(target.api_key):
            metadata = [(key.lower(), value.encode("latin-1")) for key, value in forged]
            yield _case("gRPC keys", name, port, "Generate", [generate], headers=metadata)
        for name, request in wrong_requests(generate):
            yield _case("gRPC fields", name, port, "Generate", [request], headers=key_headers(target))
        for name, wrong in wrong_embeddings(target.model):
            yield _case("gRPC fields", name, port, "Embed", [wrong], headers=key_headers(target))
        yield from _session_cases(port, target)


def key_headers(target: HostileTarget) -> Headers:
    return [("authorization", f"Bearer {target.api_key}")]


def _case(
    group: str, name: str, port: Port, method: str, messages: list[Message], *, headers: Headers = ()
) -> HostileCase:
    body = b"".join(framed(message.SerializeToString()) for message in messages)

    async def send() -> CaseOutcome:
        result = await call(port.endpoint, SERVICE + method, body, headers=headers)
        return call_outcome(result, accepted=succeeded(result))

    return HostileCase(group=group, name=name, port=port, send=send)


def _requests(model: str) -> Iterator[tuple[str, Message]]:
    yield "Generate", GenerateRequest(model=model, text="Say one word.", max_output_tokens=1)
    yield "CountTokens", CountTokensRequest(model=model, text="Count these.")
    yield "Embed", EmbedRequest(model=model, inputs=[EmbedInput(text="Embed these.")])
    yield "ListModels", ListModelsRequest()
    yield "Session", SessionRequest(hello=Hello(protocol=1, instance_id="stranger", tier="client"))


def wrong_requests(valid: GenerateRequest) -> Iterator[tuple[str, GenerateRequest]]:
    """Yield requests with one field beyond the public limits."""
    changes: dict[str, Callable[[GenerateRequest], object]] = {
        "unknown model": lambda request: request.MergeFrom(GenerateRequest(model="no-such-model")),
        "model of 1 KiB": lambda request: request.MergeFrom(GenerateRequest(model="m" * 1024)),
        "request id of 1 KiB": lambda request: request.MergeFrom(GenerateRequest(request_id="r" * 1024)),
        "no prompt": lambda request: request.ClearField("text"),
        "text of 5 MiB": lambda request: request.MergeFrom(GenerateRequest(text="a " * (5 << 19))),
        "chat without messages": lambda request: request.MergeFrom(GenerateRequest(chat=Chat())),
        "4,097 messages": lambda request: request.MergeFrom(
            GenerateRequest(chat=Chat(messages=[ChatMessage(role="user", content="x")] * 4097))
        ),
        "role of 1 KiB": lambda request: request.MergeFrom(
            GenerateRequest(chat=Chat(messages=[ChatMessage(role="r" * 1024, content="x")]))
        ),
        "token ids beyond the vocabulary": lambda request: request.MergeFrom(
            GenerateRequest(token_ids=TokenIds(ids=[2**32 - 1]))
        ),
        "no token ids": lambda request: request.MergeFrom(GenerateRequest(token_ids=TokenIds())),
        "output of 2**32 - 1": lambda request: request.MergeFrom(GenerateRequest(max_output_tokens=2**32 - 1)),
        "output of 0": lambda request: request.MergeFrom(GenerateRequest(max_output_tokens=0)),
        "17 stop strings": lambda request: request.MergeFrom(GenerateRequest(stop=["s"] * 17)),
        "stop string of 1 KiB": lambda request: request.MergeFrom(GenerateRequest(stop=["s" * 1024])),
        "negative timeout": lambda request: request.MergeFrom(GenerateRequest(timeout=Duration(seconds=-1))),
        "timeout of 10,000 years": lambda request: request.MergeFrom(
            GenerateRequest(timeout=Duration(seconds=315_576_000_000))
        ),
        "unknown priority": lambda request: request.MergeFrom(
            GenerateRequest.FromString(bytes([10 << 3, 99]))  # an enum of proto3 is open
        ),
        "resumed ids beyond the vocabulary": lambda request: request.MergeFrom(
            GenerateRequest(resume=Resume(token_ids=[2**32 - 1], answer_id="x"))
        ),
        "129 choices": lambda request: request.MergeFrom(GenerateRequest(n=129)),
        "2 choices of an answer": lambda request: request.MergeFrom(GenerateRequest(n=2, resume=Resume(answer_id="x"))),
        "301 biases": lambda request: request.sampling.logit_bias.update(dict.fromkeys(range(301), 1.0)),
        "bias of an id beyond the vocabulary": lambda request: request.sampling.logit_bias.update({2**32 - 1: 1.0}),
        "bias of NaN": lambda request: request.sampling.logit_bias.update({5: math.nan}),
        "21 likeliest tokens": lambda request: request.sampling.MergeFrom(Sampling(top_logprobs=21)),
        "answer id of 1 KiB": lambda request: request.MergeFrom(GenerateRequest(resume=Resume(answer_id="a" * 1024))),
    }
    numbers = {"NaN": math.nan, "infinity": math.inf, "-1": -1.0, "1e30": 1e30}
    for field in ("temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"):
        for name, value in numbers.items():
            if (field, name) == ("presence_penalty", "-1"):
                continue  # within its range
            changes[f"{field} of {name}"] = _sampling_change(field, value)
    for name, change in changes.items():
        request = GenerateRequest()
        request.CopyFrom(valid)
        change(request)
        yield name, request


def wrong_embeddings(model: str) -> Iterator[tuple[str, EmbedRequest]]:
    """Yield calls for embeddings with one field beyond the public limits."""
    hi = EmbedInput(text="hi")
    yield "embeddings: no inputs", EmbedRequest(model=model)
    yield "embeddings: an empty input", EmbedRequest(model=model, inputs=[hi, EmbedInput()])
    yield "embeddings: 2,049 inputs", EmbedRequest(model=model, inputs=[hi] * 2_049)
    yield "embeddings: no token ids", EmbedRequest(model=model, inputs=[EmbedInput(token_ids=TokenIds())])
    yield "embeddings: dimensions of 0", EmbedRequest(model=model, inputs=[hi], dimensions=0)
    yield "embeddings: dimensions of 2**32 - 1", EmbedRequest(model=model, inputs=[hi], dimensions=2**32 - 1)


def _sampling_change(field: str, value: float) -> Callable[[GenerateRequest], object]:
    def change(request: GenerateRequest) -> None:
        request.sampling.MergeFrom(Sampling(**{field: value}))  # type: ignore[arg-type]  # a field by its name

    return change


def _session_cases(port: Port, target: HostileTarget) -> Iterator[HostileCase]:
    """Yield sessions that have a valid key and break the protocol of sessions."""
    headers = key_headers(target)
    hello = SessionRequest(hello=Hello(protocol=1, instance_id="tenant", tier="client"))
    generate = SessionRequest(generate=SessionGenerate(handle=1, request=GenerateRequest(text="x")))
    streams: dict[str, list[Message]] = {
        "no hello": [generate],
        "hello of version 0": [SessionRequest(hello=Hello(protocol=0, min_protocol=0, instance_id="x"))],
        "hello of version 2**32 - 1": [SessionRequest(hello=Hello(protocol=2**32 - 1, min_protocol=2**32 - 1))],
        "instance id of 64 KiB": [SessionRequest(hello=Hello(protocol=1, instance_id="i" * 65_536))],
        "an empty frame first": [SessionRequest()],
    }
    for name, messages in streams.items():
        yield _case("gRPC fields", f"session: {name}", port, "Session", messages, headers=headers)
    for name, (first, second) in {"hello alone, without a key": (hello, None), "a request": (hello, generate)}.items():
        sent: list[Message] = [first, *([second] if second else [])]
        yield _case("gRPC identity", f"session without a key: {name}", port, "Session", sent)
