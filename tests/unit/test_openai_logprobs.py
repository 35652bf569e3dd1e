"""Log probabilities in the formats of the API, read by the unmodified OpenAI client over a transport in memory."""

import httpx2
import openai
import pytest

from penstock.edge.api.openai.body.fields import parse_body
from penstock.edge.api.openai.chat import ChatSerializer, parse_chat
from penstock.edge.api.openai.completions import CompletionSerializer, parse_completion
from penstock.edge.api.openai.responses.response import ResponsesSerializer, parse_response
from penstock.edge.text.token_text import TokenText
from penstock.v1.inference_pb2 import FINISH_REASON_STOP, Accepted, Delta, Finished, Usage

ACCEPTED = Accepted(request_id="r1", model="m", prompt_tokens=3)
STOPPED = Finished(reason=FINISH_REASON_STOP, usage=Usage(prompt_tokens=3, output_tokens=4))
# The é is of two tokens, and the last token is special.
TOKENS = {
    1: TokenText("a", b"a"),
    2: TokenText("\\xc3", b"\xc3"),
    3: TokenText("\\xa9", b"\xa9"),
    4: TokenText("<|end|>", None),
    5: TokenText("b", b"b"),
}
DELTAS = [
    Delta(text="a", token_ids=[1], logprobs=[-0.5], top_token_ids=[1, 5], top_logprobs=[-0.5, -1.5]),
    Delta(text="", token_ids=[2], logprobs=[-2.0], top_token_ids=[5, 1], top_logprobs=[-0.25, -1.25]),
    Delta(
        text="é",
        token_ids=[3, 4],
        logprobs=[-0.125, float("-inf")],
        top_token_ids=[3, 1, 5, 1],
        top_logprobs=[-0.125, -4, -0.75, float("-inf")],
    ),
    Delta(text="?"),  # text that was held back until the end
]
TEXT = "aé?"
SERIALIZERS = {
    "/v1/chat/completions": (parse_chat, ChatSerializer),
    "/v1/completions": (parse_completion, CompletionSerializer),
    "/v1/responses": (parse_response, ResponsesSerializer),
}
GREETING = [{"role": "user", "content": "hi"}]
ENTRIES = [
    ("a", -0.5, [97], [("a", -0.5), ("b", -1.5)]),
    ("\\xc3", -2.0, [0xC3], [("b", -0.25), ("a", -1.25)]),
    ("\\xa9", -0.125, [0xA9], [("\\xa9", -0.125), ("a", -4.0)]),
    ("<|end|>", -9999.0, None, [("b", -0.75), ("a", -9999.0)]),
]


@pytest.fixture
def api():
    def served(request):
        parse, new_serializer = SERIALIZERS[request.url.path]
        request = parse(parse_body(request.content), "r1")
        answer = new_serializer(request, created=1, describe=TOKENS.__getitem__)
        if request.stream:
            stream = answer.begin(ACCEPTED) + b"".join(map(answer.delta, DELTAS)) + answer.finish(STOPPED)
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)
        for delta in DELTAS:
            if delta.logprobs:
                answer.collect_logprobs(delta)
        return httpx2.Response(200, content=answer.whole(ACCEPTED, TEXT, STOPPED))

    transport = httpx2.Client(transport=httpx2.MockTransport(served))
    with openai.OpenAI(api_key="k", base_url="http://edge/v1", max_retries=0, http_client=transport) as client:
        yield client


def entries_of(content):
    return [
        (each.token, each.logprob, each.bytes, [(top.token, top.logprob) for top in each.top_logprobs])
        for each in content
    ]


def test_a_chat_has_an_entry_for_each_token(api):
    whole = api.chat.completions.create(model="m", messages=GREETING, logprobs=True, top_logprobs=2)
    assert whole.choices[0].message.content == TEXT
    assert entries_of(whole.choices[0].logprobs.content) == ENTRIES
    assert bytes(byte for each in ENTRIES for byte in each[2] or ()).decode() == "aé"


def test_the_chunks_of_a_chat_have_the_entries_of_the_whole(api):
    stream = api.chat.completions.create(model="m", messages=GREETING, logprobs=True, top_logprobs=2, stream=True)
    chunks = [chunk.choices[0] for chunk in stream]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == TEXT
    content = [each for chunk in chunks if chunk.logprobs for each in chunk.logprobs.content]
    assert entries_of(content) == ENTRIES


def test_a_completion_has_parallel_lists(api):
    whole = api.completions.create(model="m", prompt="hi", logprobs=2).choices[0]
    assert whole.logprobs.tokens == ["a", "bytes:\\xc3", "bytes:\\xa9", "<|end|>"]
    assert whole.logprobs.token_logprobs == [-0.5, -2.0, -0.125, -9999.0]
    assert whole.logprobs.text_offset == [0, 1, 1, 2]
    assert whole.logprobs.top_logprobs == [
        {"a": -0.5, "b": -1.5},
        {"b": -0.25, "a": -1.25, "bytes:\\xc3": -2.0},
        {"bytes:\\xa9": -0.125, "a": -4.0},
        {"b": -0.75, "a": -9999.0, "<|end|>": -9999.0},
    ]
    chunks = [chunk.choices[0] for chunk in api.completions.create(model="m", prompt="hi", logprobs=2, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == TEXT
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [each for chunk in chunks if chunk.logprobs for each in getattr(chunk.logprobs, name)]
        assert parts == getattr(whole.logprobs, name)


def test_a_response_has_entries_in_its_text_and_in_each_delta(api):
    options = {"model": "m", "input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = api.responses.create(**options)
    assert whole.top_logprobs == 2
    assert entries_of(whole.output[0].content[0].logprobs) == ENTRIES
    events = list(api.responses.create(**options, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == TEXT
    pairs = [(each.token, each.logprob) for event in deltas for each in event.logprobs]
    assert pairs == [(token, logprob) for token, logprob, _, _ in ENTRIES]
    assert entries_of(events[-1].response.output[0].content[0].logprobs) == ENTRIES


def test_answers_without_the_option_have_none(api):
    assert api.chat.completions.create(model="m", messages=GREETING).choices[0].logprobs is None
    assert api.completions.create(model="m", prompt="hi").choices[0].logprobs is None
