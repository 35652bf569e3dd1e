"""Progress of one answer over several attempts: each token once, in order, and the next request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import IndexGap
from penstock.client.progress import Progress, TokenChunk
from penstock.client.request import generate_request
from penstock.client.stream import chunks_of
from penstock.v1.inference_pb2 import Accepted, Delta, Finished, SessionStep

ACCEPTED_FRAME = Accepted(request_id="r", model="m", prompt_tokens=3, max_output_tokens=8, seed=42)


def delta(first: int, *ids: int, text: str = "", **more) -> Delta:
    return Delta(first_index=first, token_ids=ids, text=text, **more)


def progress(**options) -> Progress:
    found = Progress(generate_request("Hello", **options))
    found.apply(ACCEPTED_FRAME)
    return found


def test_chunks_are_in_order_with_their_text():
    found = progress()
    assert found.apply(delta(0, 7, 8, text="ab")) == TokenChunk("ab", (7, 8), 0)
    assert found.apply(delta(2, 9)) == TokenChunk("", (9,), 2)
    assert found.apply(delta(3, text="c")) == TokenChunk("c", (), 3)  # held back until the end
    assert (found.text, found.token_ids) == ("abc", [7, 8, 9])


def test_duplicate_tokens_are_dropped_and_counted():
    found = progress()
    found.apply(delta(0, 7, 8, text="ab"))
    assert found.apply(delta(0, 7, text="a")) is None
    assert found.apply(delta(0, 7, 8, text="ab")) is None
    assert (found.text, found.duplicate_tokens) == ("ab", 3)


def test_text_held_back_to_the_end_is_returned_once():
    found = progress()
    found.apply(delta(0, 7, 8, text="a"))
    assert found.apply(delta(2, text="b")) == TokenChunk("b", (), 2)
    assert found.apply(delta(2, text="b")) is None
    assert found.text == "ab"


@pytest.mark.parametrize("wrong", [delta(3, 9), delta(1, 8, 9), delta(3, text="c")])
def test_a_gap_or_a_partly_duplicate_delta_is_an_error(wrong):
    found = progress()
    found.apply(delta(0, 7, 8, text="ab"))
    with pytest.raises(IndexGap, match="where 2 was next"):
        found.apply(wrong)


def test_the_first_request_is_the_callers():
    request = generate_request("Hello", model="m")
    assert Progress(request).next_request() == request


def test_a_resumed_request_uses_the_values_of_the_first_edge():
    found = progress()
    found.apply(delta(0, 7, 8, text="ab"))
    found.apply(Accepted(request_id="other", model="other", max_output_tokens=1, seed=1))
    request = found.next_request()
    assert request.text == "Hello"
    assert (request.request_id, request.model, request.max_output_tokens, request.sampling.seed) == ("r", "m", 8, 42)
    assert list(request.resume.token_ids) == [7, 8]


def test_an_answer_that_the_caller_resumes_continues_after_its_tokens():
    request = generate_request("Hello")
    request.resume.token_ids[:] = [5, 6]
    found = Progress(request)
    found.apply(delta(2, 7))
    assert list(found.next_request().resume.token_ids) == [5, 6, 7]
    assert found.token_ids == [7]


def test_a_resumed_request_names_the_answer_even_without_a_token():
    found = Progress(generate_request("Hello"))
    found.apply(Accepted(request_id="r", answer_id="a-1", model="m", max_output_tokens=8, seed=42))
    assert found.next_request().resume.answer_id == "a-1"
    found.apply(delta(0, 7))
    assert (found.next_request().resume.answer_id, list(found.next_request().resume.token_ids)) == ("a-1", [7])


def test_an_edge_without_answer_ids_is_supported():
    assert not progress().next_request().HasField("resume")


def test_likeliest_tokens_are_returned_if_requested_and_imply_logprobs():
    top = {"logprobs": [-0.5], "top_token_ids": [7, 8], "top_logprobs": [-0.5, -2.0]}
    chunk = progress(top_logprobs=2).apply(delta(0, 7, **top))
    assert (chunk.logprobs, chunk.top_token_ids, chunk.top_logprobs) == ((-0.5,), (7, 8), (-0.5, -2.0))
    assert progress(logprobs=True).apply(delta(0, 7, **top)).top_token_ids == ()


def test_the_likeliest_tokens_of_a_session_are_divided_by_request():
    step = SessionStep(
        handles=[1, 2, 3],
        texts=["ab", "c", ""],
        first_indexes=[0, 4, 9],
        counts=[2, 1, 0],
        token_ids=[7, 8, 9],
        logprobs=[-1, -2, 0],
        top_counts=[2, 0, 0],
        top_token_ids=[7, 17, 8, 18],
        top_logprobs=[-1, -2, -2, -3],
    )
    found = {handle: (chunk.top_token_ids, chunk.top_logprobs) for handle, chunk in chunks_of(step)}
    assert found == {1: ((7, 17, 8, 18), (-1, -2, -2, -3)), 2: ((), ()), 3: ((), ())}


def test_logprobs_are_returned_if_requested():
    assert progress(logprobs=True).apply(delta(0, 7, logprobs=[-0.5])).logprobs == (-0.5,)
    assert progress().apply(delta(0, 7, logprobs=[0.0])).logprobs == ()


@given(cuts=st.lists(st.integers(0, 12), max_size=6), total=st.integers(0, 12), repeats=st.booleans())
def test_any_lost_attempts_give_the_whole_answer_once(cuts, total, repeats):
    """Attempts that are lost at any point, each resumed or repeated from the start."""
    found = progress()
    for cut in [*cuts, total]:
        start = 0 if repeats else len(found.next_request().resume.token_ids)
        for index in range(start, min(cut, total)):
            found.apply(delta(index, 100 + index, text=chr(97 + index)))
    found.apply(Finished())
    assert found.token_ids == [100 + index for index in range(total)]
    assert found.text == "".join(chr(97 + index) for index in range(total))


def test_a_step_of_a_session_is_split_into_the_chunks_of_its_requests():
    step = SessionStep(
        handles=[3, 1, 2],
        texts=["ab", "", "c"],
        first_indexes=[4, 0, 9],
        counts=[2, 0, 1],
        token_ids=[7, 8, 9],
        logprobs=[-1.0, -2.0, 0.0],
    )
    assert list(chunks_of(step)) == [
        (3, TokenChunk("ab", (7, 8), 4, (-1.0, -2.0))),
        (1, TokenChunk("", (), 0)),
        (2, TokenChunk("c", (9,), 9, (0.0,))),
    ]


def test_chunks_of_a_step_are_applied_as_deltas_are():
    found, step = progress(), SessionStep(handles=[1], texts=["ab"], first_indexes=[0], counts=[2], token_ids=[7, 8])
    for _ in range(2):
        chunks = [found.apply(chunk) for _, chunk in chunks_of(step)]
    assert (chunks, found.text, found.token_ids, found.duplicate_tokens) == ([None], "ab", [7, 8], 2)


def version_of(found: Progress) -> str:
    return found.next_request().resume.model_version


def test_an_answer_with_tokens_is_resumed_with_its_version():
    found = progress()
    found.apply(Accepted(model_version="old"))
    found.apply(delta(0, 7))
    found.apply(Accepted(model_version="new"))  # of a later attempt, which continues the same version
    assert version_of(found) == found.accepted.model_version == "old"


def test_the_version_may_change_before_the_first_token():
    found = progress()
    found.apply(Accepted(model_version="old"))
    assert version_of(found) == ""
    found.apply(Accepted(model_version="new"))
    found.apply(delta(0, 7))
    assert version_of(found) == "new"
    assert found.accepted.seed == ACCEPTED_FRAME.seed
