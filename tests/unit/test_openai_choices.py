"""Responses with several choices, read by the unmodified OpenAI client over a transport in memory."""

from functools import partial

import httpx2
import openai
import pytest

from penstock.chassis.errors import Unavailable
from penstock.edge.api.openai.body.fields import parse_body
from penstock.edge.api.openai.chat import ChatSerializer, parse_chat
from penstock.edge.api.openai.choices import ChoicesSerializer, WholeChoice, whole_response
from penstock.edge.api.openai.completions import CompletionSerializer, parse_completion
from penstock.edge.request.choices import choice_specs
from penstock.edge.request.spec import RequestSpec, TextInput, TokenInput
from penstock.edge.text.token_text import TokenText
from penstock.mesh.choice_seed import choice_seed
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, Accepted, Delta, Finished, Usage

GREETING = [{"role": "user", "content": "hi"}]
TEXTS = ["one", "two", "three", "four"]
LOGPROBS = [-3.0, -1.0, -2.0, -0.5]
ACCEPTED = Accepted(request_id="r1", model="m", prompt_tokens=3)
ROUTES = {
    "/v1/chat/completions": (parse_chat, ChatSerializer),
    "/v1/completions": (parse_completion, CompletionSerializer),
}


def describe(token_id):
    return TokenText(f"<{token_id}>", None) if token_id == 0 else TokenText(chr(96 + token_id), bytes([96 + token_id]))


def events_of(count, per_prompt):
    """Deltas and ends of `count` choices, choice after choice in each round."""
    deltas = [
        Delta(text=TEXTS[choice % 4][part::2], token_ids=[1], logprobs=[LOGPROBS[choice % 4]], choice=choice)
        for part in range(2)
        for choice in range(count)
    ]
    ends = [
        Finished(
            reason=FINISH_REASON_STOP if choice else FINISH_REASON_LENGTH,
            usage=Usage(prompt_tokens=0 if choice % per_prompt else 3, output_tokens=2),
            choice=choice,
        )
        for choice in reversed(range(count))
    ]
    return deltas, ends


def text_of(choice):
    return TEXTS[choice % 4][0::2] + TEXTS[choice % 4][1::2]


def stream_of(request, new_serializer, deltas, ends, error=None):
    serializer = ChoicesSerializer(request, new_serializer)
    stream = serializer.begin([ACCEPTED] * len(ends)) + b"".join(map(serializer.delta, deltas))
    if error:
        return stream + serializer.fail(error)
    for end in ends:
        assert not serializer.is_complete
        stream += serializer.finish(end)
    assert serializer.is_complete
    return stream


def client(error=None):
    def served(sent):
        parse, serializer_type = ROUTES[sent.url.path]
        request = parse(parse_body(sent.content), "r1")
        assert request.has_several_choices
        new_serializer = partial(serializer_type, created=1, describe=describe)
        generated = request.spec.n * max(1, len(request.inputs))
        deltas, ends = events_of(generated, request.spec.n)
        if request.stream:
            content = stream_of(request, new_serializer, deltas, ends, error)
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=content)
        choices = [WholeChoice() for _ in range(generated)]
        for delta in deltas:
            choices[delta.choice].deltas.append(delta)
        for end in ends:
            choices[end.choice].finished = end
        return httpx2.Response(200, content=whole_response(request, new_serializer, ACCEPTED, choices))

    transport = httpx2.Client(transport=httpx2.MockTransport(served))
    return openai.OpenAI(api_key="k", base_url="http://edge/v1", max_retries=0, http_client=transport)


def test_a_chat_has_its_choices_in_order_with_the_usage_of_all():
    with client() as api:
        whole = api.chat.completions.create(model="m", messages=GREETING, n=3)
    assert [(each.index, each.message.content) for each in whole.choices] == [(at, text_of(at)) for at in range(3)]
    assert [each.finish_reason for each in whole.choices] == ["length", "stop", "stop"]
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (3, 6, 9)


def test_the_chunks_of_a_stream_name_their_choice_and_the_stream_ends_once():
    with client() as api:
        options = {"model": "m", "messages": GREETING, "n": 3, "stream_options": {"include_usage": True}}
        chunks = list(api.chat.completions.create(stream=True, **options))
    texts, ends, roles = {}, {}, []
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        if choice.delta.role:
            roles.append(choice.index)
        if choice.finish_reason:
            ends[choice.index] = choice.finish_reason
    assert texts == {at: text_of(at) for at in range(3)}
    assert (roles, ends) == ([0, 1, 2], {0: "length", 1: "stop", 2: "stop"})
    assert (chunks[-1].choices, chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == ([], 3, 6)


def test_an_error_ends_the_stream_without_done():
    with client(Unavailable("gone", reason="NO_WORKER")) as api, pytest.raises(openai.APIError, match="gone"):
        list(api.chat.completions.create(model="m", messages=GREETING, n=2, stream=True))


def test_prompts_have_their_answers_prompt_after_prompt():
    with client() as api:
        whole = api.completions.create(model="m", prompt=["x", [1, 2]], n=2, echo=True)
        streamed = list(api.completions.create(model="m", prompt=["x", [1, 2]], n=2, echo=True, stream=True))
    texts = [prompt + text_of(at) for at, prompt in enumerate(["x", "x", "ab", "ab"])]
    assert [(each.index, each.text) for each in whole.choices] == list(enumerate(texts))
    assert whole.usage.prompt_tokens == 6
    found = [""] * 4
    for chunk in streamed:
        found[chunk.choices[0].index] += chunk.choices[0].text
    assert found == texts


def test_the_best_answers_have_the_highest_mean_log_probability():
    with client() as api:
        whole = api.completions.create(model="m", prompt="x", n=2, best_of=4)
    assert [(each.index, each.text) for each in whole.choices] == [(0, text_of(3)), (1, text_of(1))]
    assert [each.logprobs for each in whole.choices] == [None, None]
    assert whole.usage.completion_tokens == 8, "all that were generated count"


def test_a_returned_answer_has_its_own_log_probabilities():
    with client() as api:
        whole = api.completions.create(model="m", prompt="x", n=1, best_of=4, logprobs=0)
    assert whole.choices[0].logprobs.token_logprobs == [-0.5, -0.5]


def test_an_echoed_prompt_of_token_ids_is_decoded():
    request = parse_completion(parse_body(b'{"prompt":[0,1,2],"echo":true}'), "r1")
    serializer = CompletionSerializer(request, created=1, describe=describe)
    assert b'"text":"<0>ab"' in serializer.begin(ACCEPTED)
    assert b'"text":"<0>ab!"' in serializer.whole(ACCEPTED, "!", Finished())


def test_the_first_choice_has_the_seed_of_the_request_and_all_differ():
    spec = RequestSpec(request_id="r", model="m", input=TextInput("x"), n=4, seed=2**64 - 1)
    specs = choice_specs(spec, (TextInput("x"), TokenInput((1,))), 4, lambda: 5)
    assert [each.seed for each in specs] == [choice_seed(2**64 - 1, choice) for choice in range(4)] * 2
    assert specs[0].seed == 2**64 - 1
    assert len({each.seed for each in specs}) == 4
    assert {each.n for each in specs} == {1}
    assert len({choice_seed(seed, choice) for seed in range(100) for choice in range(128)}) == 12_800


def test_each_prompt_without_a_seed_draws_its_own():
    drawn = iter([5, 6])
    spec = RequestSpec(request_id="r", model="m", input=TextInput("x"), n=1)
    specs = choice_specs(spec, (TextInput("x"), TextInput("y")), 2, lambda: next(drawn))
    assert [each.seed for each in specs] == [choice_seed(seed, choice) for seed in (5, 6) for choice in range(2)]
