"""Calls for embeddings as each API parses them: inputs, limits and encodings."""

import base64
import json
import struct

import pytest

from penstock.chassis.errors import InvalidArgument
from penstock.client.request import embed_request
from penstock.edge.api.grpc.embeddings import embedding_call_of
from penstock.edge.api.openai.body.fields import parse_body
from penstock.edge.api.openai.embeddings import parse_embeddings
from penstock.edge.request import limits
from penstock.edge.request.spec import TextInput, TokenInput
from penstock.v1.inference_pb2 import EmbedInput, EmbedRequest, Priority, TokenIds


def parsed(**members):
    return parse_embeddings(parse_body(json.dumps(members).encode()), "r1")


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("hi", (TextInput("hi"),)),
        (["hi", "ho"], (TextInput("hi"), TextInput("ho"))),
        ([1, 2], (TokenInput((1, 2)),)),
        ([[1, 2], [3]], (TokenInput((1, 2)), TokenInput((3,)))),
        (["hi", [3]], (TextInput("hi"), TokenInput((3,)))),
    ],
)
def test_an_input_has_each_form_of_the_api(given, inputs):
    call = parsed(input=given, model="m", dimensions=7, service_tier="flex", user="u").call
    assert (call.inputs, call.model, call.dimensions) == (inputs, "m", 7)
    assert (call.request_id, call.priority) == ("r1", Priority.PRIORITY_BATCH)


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": []}, "input[0]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a", []]}, "input[1]"),
        ({"input": ["a", 3]}, "input[1]"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": [1, True]}, "input[1]"),
        ({"input": ["a", ["b"]]}, "input[1][0]"),
        ({"input": ["a", "b" * (limits.TEXT_BYTES + 1)]}, "input[1]"),
        ({"input": ["a"] * (limits.EMBEDDING_INPUTS + 1)}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "8"}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "model": "m" * 300}, "model"),
        ({"input": "a", "service_tier": "x"}, "service_tier"),
    ],
)
def test_a_wrong_field_is_named(members, field):
    with pytest.raises(InvalidArgument) as caught:
        parsed(**members)
    assert caught.value.field_violations[0].field == field


def test_each_encoding_is_json_of_the_vector():
    vector = [0.5, -0.25, 0.0]
    for members in ({}, {"encoding_format": "float"}):
        assert json.loads(parsed(input="a", **members).encoding.encode(vector)) == vector
    encoded = json.loads(parsed(input="a", encoding_format="base64").encoding.encode(vector))
    assert struct.unpack("<3f", base64.b64decode(encoded)) == tuple(vector)


def test_a_message_becomes_a_call():
    request = embed_request(["hi", [1, 2]], "m", 7)
    request.timeout.FromSeconds(3)
    call = embedding_call_of(request)
    assert call.inputs == (TextInput("hi"), TokenInput((1, 2)))
    assert (call.model, call.dimensions, call.timeout_s) == ("m", 7, 3.0)
    assert call.request_id
    assert embedding_call_of(embed_request(["hi"], "", None)).dimensions is None


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (EmbedRequest(), "inputs"),
        (EmbedRequest(inputs=[EmbedInput()]), "inputs"),
        (EmbedRequest(inputs=[EmbedInput(text="a"), EmbedInput(token_ids=TokenIds())]), "inputs[1]"),
        (EmbedRequest(inputs=[EmbedInput(text="a")] * (limits.EMBEDDING_INPUTS + 1)), "inputs"),
        (EmbedRequest(inputs=[EmbedInput(token_ids=TokenIds(ids=[1] * 2**19))] * 3), "inputs"),
        (EmbedRequest(inputs=[EmbedInput(text="a")], dimensions=0), "dimensions"),
        (EmbedRequest(inputs=[EmbedInput(text="a")], request_id="é"), "request_id"),
        (EmbedRequest(inputs=[EmbedInput(text="a")], timeout={"seconds": 10**6}), "timeout"),
        (EmbedRequest(inputs=[EmbedInput(text="a")], priority=9), "priority"),
    ],
)
def test_a_wrong_message_is_named(request_, field):
    with pytest.raises(InvalidArgument) as caught:
        embedding_call_of(request_)
    assert caught.value.field_violations[0].field == field


def test_one_text_is_not_a_list_of_letters():
    with pytest.raises(TypeError):
        embed_request("hi", "", None)
