"""The endpoint picker's side of the protocol: messages of a proxy, and what is answered to each."""

import json

import pytest
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingRequest as EnvoyRequest
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingResponse as EnvoyResponse

from penstock.ext_proc.external_processor_pb2 import (
    BUFFERED,
    FULL_DUPLEX_STREAMED,
    NONE,
    STREAMED,
    BodySendMode,
    HttpBody,
    ProcessingRequest,
)
from penstock.picker.errors import BodiesFull, BodyTooLarge, NoEndpoint
from penstock.picker.exchange import replies
from penstock.picker.exchange.exchange import Exchange
from penstock.picker.exchange.held_bodies import HeldBodies
from penstock.picker.exchange.metadata import SubsetTooLarge, destination_metadata
from penstock.picker.exchange.usage import UsageReader
from penstock.picker.picking.pick import Usage
from penstock.queue.errors import QueueFull

ENDPOINTS = ("10.0.0.1:8000", "10.0.0.2:8000")
BODY = b'{"model":"small"}'


def exchange(max_body_bytes=1 << 20, max_held_bytes=1 << 20):
    return Exchange(max_body_bytes, HeldBodies(max_held_bytes))


def headers(mode=None, *, response_mode=NONE, end=False, subset=None, **values):
    message = ProcessingRequest()
    message.request_headers.end_of_stream = end
    for name, value in values.items():
        message.request_headers.headers.headers.add(key=name.replace("_", "-"), raw_value=value.encode())
    if mode is not None:
        message.protocol_config.request_body_mode = mode
        message.protocol_config.response_body_mode = response_mode
    if subset is not None:
        message.metadata_context.filter_metadata["envoy.lb.subset_hint"].update(
            {"x-gateway-destination-endpoint-subset": subset}
        )
    return message


def body(content=BODY, *, end=True):
    return ProcessingRequest(request_body=HttpBody(body=content, end_of_stream=end))


def parts(responses):
    return [each.WhichOneof("response") for each in responses]


def test_messages_and_numbers_are_those_of_envoy():
    found = exchange()
    found.receive(headers(FULL_DUPLEX_STREAMED))
    found.receive(body())
    for ours in found.picked(ENDPOINTS):
        theirs = EnvoyResponse.parse(ours.SerializeToString())
        assert not theirs._unknown_fields
        assert json.loads(theirs.to_json()) == json.loads(EnvoyResponse.parse(bytes(theirs)).to_json())
    rejection = EnvoyResponse.parse(replies.rejection(QueueFull(3, 2.5)).SerializeToString()).immediate_response
    assert (rejection.status.code, rejection.grpc_status.status) == (429, 8)
    assert {each.header.key: each.header.raw_value for each in rejection.headers.set_headers}["retry-after"] == b"3"
    wait = EnvoyResponse.parse(replies.wait_for(60.0).SerializeToString())
    assert wait.override_message_timeout.total_seconds() == 60.0
    request = headers(BUFFERED, subset=["10.0.0.1:1"], x_tenant="a")
    theirs = EnvoyRequest.parse(request.SerializeToString())
    assert not theirs._unknown_fields
    assert theirs.protocol_config.request_body_mode == BUFFERED
    assert ProcessingRequest.FromString(bytes(theirs)) == request


def test_a_proxy_that_holds_the_body_gets_the_endpoint_with_the_answer_to_it():
    found = exchange()
    assert parts(found.receive(headers(BUFFERED))) == ["request_headers"]
    assert not found.is_complete
    assert found.receive(body()) == ()
    assert found.is_complete
    assert found.body == BODY
    (answer,) = found.picked(ENDPOINTS)
    (header,) = answer.request_body.response.header_mutation.set_headers
    assert header.header.key == "x-gateway-destination-endpoint"
    assert header.header.raw_value.decode() == "10.0.0.1:8000,10.0.0.2:8000"
    assert answer.dynamic_metadata == destination_metadata("10.0.0.1:8000,10.0.0.2:8000")
    assert answer.request_body.response.clear_route_cache


def test_a_proxy_that_streams_gets_everything_once_the_endpoint_is_known():
    found, content = exchange(), b"x" * 150_000
    assert found.receive(headers(FULL_DUPLEX_STREAMED)) == ()
    assert found.receive(body(content[:100_000], end=False)) == ()
    assert not found.is_complete
    found.receive(body(content[100_000:]))
    assert found.is_complete
    answers = list(found.picked(ENDPOINTS))
    assert parts(answers) == ["request_headers", *["request_body"] * 3]
    pieces = [each.request_body.response.body_mutation.streamed_response for each in answers[1:]]
    assert b"".join(each.body for each in pieces) == content
    assert [each.end_of_stream for each in pieces] == [False, False, True]
    assert max(len(each.body) for each in pieces) <= 64 * 1024


def test_a_proxy_that_does_not_state_its_mode_streams():
    found = exchange()
    assert found.receive(headers()) == ()
    assert not found.is_complete


def test_trailers_end_a_body_and_are_answered_last():
    found = exchange()
    found.receive(headers(FULL_DUPLEX_STREAMED))
    found.receive(body(end=False))
    trailers = ProcessingRequest()
    trailers.request_trailers.SetInParent()
    assert found.receive(trailers) == ()
    assert found.is_complete
    answers = list(found.picked(ENDPOINTS))
    assert parts(answers) == ["request_headers", "request_body", "request_trailers"]
    assert not answers[1].request_body.response.body_mutation.streamed_response.end_of_stream


@pytest.mark.parametrize("mode", [NONE, STREAMED])
def test_a_proxy_that_sends_no_body_in_time_gets_the_endpoint_with_the_headers(mode):
    found = exchange()
    assert found.receive(headers(mode)) == ()
    assert found.is_complete
    assert found.has_body
    assert parts(found.picked(ENDPOINTS)) == ["request_headers"]
    assert parts(found.receive(body())) == ["request_body"]


def test_a_request_without_a_body_is_complete_at_its_headers():
    found = exchange()
    found.receive(headers(BUFFERED, end=True))
    assert found.is_complete
    assert not found.has_body
    assert parts(found.picked(ENDPOINTS)) == ["request_headers"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (["a:1", "b:2"], {"a:1", "b:2"}),
        (["a:1, b:2"], {"a:1", "b:2"}),
        ("a:1,b:2", {"a:1", "b:2"}),
        ([], set()),
        ("", set()),
        (3, set()),
    ],
)
def test_the_subset_is_a_list_or_a_text_and_any_other_value_allows_nothing(value, expected):
    found = exchange()
    found.receive(headers(BUFFERED, subset=value))
    assert found.subset == expected


def test_a_subset_is_bounded():
    with pytest.raises(SubsetTooLarge):
        exchange().receive(headers(BUFFERED, subset=[f"a:{each}" for each in range(5_000)]))


def response_headers(*, served="", status="200", end=False):
    message = ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=status.encode())
    message.response_headers.end_of_stream = end
    if served:
        message.metadata_context.filter_metadata["envoy.lb"].update({"x-gateway-destination-endpoint-served": served})
    return message


def test_the_response_names_the_endpoint_that_served():
    found = exchange()
    found.receive(headers(BUFFERED, response_mode=STREAMED))
    assert parts(found.receive(response_headers(served="10.0.0.2:8000"))) == ["response_headers"]
    assert (found.served, found.status, found.is_ended) == ("10.0.0.2:8000", 200, False)
    other = exchange()
    other.receive(headers(BUFFERED))
    other.receive(response_headers(status="x", end=True))
    assert (other.served, other.status, other.is_ended) == ("", 0, True)


@pytest.mark.parametrize("mode", [STREAMED, FULL_DUPLEX_STREAMED])
def test_a_response_is_sent_on_as_it_came_and_its_usage_is_read(mode):
    found = exchange()
    found.receive(headers(BUFFERED, response_mode=mode))
    for content, end in ((b"data: a", False), (b'{"usage":{"prompt_tokens":7,"completion_tokens":3}}', True)):
        message = ProcessingRequest(response_body=HttpBody(body=content, end_of_stream=end))
        (answer,) = found.receive(message)
        piece = answer.response_body.response.body_mutation.streamed_response
        assert (piece.body, piece.end_of_stream) == ((content, end) if mode == FULL_DUPLEX_STREAMED else (b"", False))
    assert found.is_ended
    assert found.usage.read() == Usage(7, 3)


def test_usage_is_read_from_the_end_across_pieces():
    reader = UsageReader()
    assert reader.read() is None
    for piece in (
        b"x" * 5_000,
        b'"usage": {"prompt_tokens": 20, "compl',
        b'etion_tokens": 4, "prompt_tokens_details":',
    ):
        reader.feed(piece)
    reader.feed(b'{"cached_tokens": 16}}}\n\ndata: [DONE]\n\n')
    assert reader.read() == Usage(20, 4, 16)


def test_bodies_are_bounded_each_and_together():
    with pytest.raises(BodyTooLarge):
        one = exchange(max_body_bytes=10)
        one.receive(headers(BUFFERED)), one.receive(body())
    held = HeldBodies(len(BODY))
    first, second = Exchange(100, held), Exchange(100, held)
    first.receive(headers(BUFFERED)), second.receive(headers(BUFFERED))
    first.receive(body())
    with pytest.raises(BodiesFull):
        second.receive(body())
    first.drop_body(), first.drop_body()
    second.receive(body())
    assert held.size == len(BODY)
    list(second.picked(ENDPOINTS))
    assert held.size == 0


def test_errors_have_the_statuses_of_the_protocol():
    statuses = {
        type(error).__name__: replies.rejection(error).immediate_response.status.code
        for error in (NoEndpoint(in_subset=False), QueueFull(1, 1.0), BodyTooLarge(1), SubsetTooLarge("x"))
    }
    assert statuses == {"NoEndpoint": 503, "QueueFull": 429, "BodyTooLarge": 413, "SubsetTooLarge": 400}


def test_an_unknown_part_is_not_answered():
    assert exchange().receive(ProcessingRequest()) == ()


def test_the_modes_of_a_body_have_the_names_of_envoy():
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import ProcessingModeBodySendMode

    assert {name: each.value for name, each in ProcessingModeBodySendMode.__members__.items()} == dict(
        BodySendMode.items()
    )
