"""What comes of one answer over several attempts: each token once, in order, and how to go on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import IndexGap
from penstock.client.progress import Progress
from penstock.client.request import generate_request
from penstock.client.stream import deltas_of
from penstock.v1.inference_pb2 import Accepted, Delta, Finished, SessionStep

ACCEPTED = Accepted(request_id="r", model="m", prompt_tokens=3, max_output_tokens=8, seed=42)


def delta(first: int, *ids: int, text: str = "", logprobs=()) -> Delta:
    return Delta(first_index=first, token_ids=ids, text=text, logprobs=logprobs)


def progress(**options) -> Progress:
    found = Progress(generate_request("Hello", **options))
    found.apply(ACCEPTED)
    return found


def test_pieces_come_in_order_with_their_text():
    found = progress()
    assert found.apply(delta(0, 7, 8, text="ab")) == ("ab", (7, 8), 0, ())
    assert found.apply(delta(2, 9)) == ("", (9,), 2, ())
    assert found.apply(delta(3, text="c")) == ("c", (), 3, ())  # held back until the end
    assert (found.text, found.token_ids) == ("abc", [7, 8, 9])


def test_what_came_already_is_dropped_and_counted():
    found = progress()
    found.apply(delta(0, 7, 8, text="ab"))
    assert found.apply(delta(0, 7, text="a")) is None
    assert found.apply(delta(0, 7, 8, text="ab")) is None
    assert (found.text, found.duplicate_tokens) == ("ab", 3)


def test_text_held_back_to_the_end_is_taken_once_however_often_the_end_is_resumed():
    found = progress()
    found.apply(delta(0, 7, 8, text="a"))
    assert found.apply(delta(2, text="b")) == ("b", (), 2, ())
    assert found.apply(delta(2, text="b")) is None
    assert found.text == "ab"


@pytest.mark.parametrize("wrong", [delta(3, 9), delta(1, 8, 9), delta(3, text="c")])
def test_a_gap_or_a_delta_half_known_is_an_error(wrong):
    found = progress()
    found.apply(delta(0, 7, 8, text="ab"))
    with pytest.raises(IndexGap, match="where 2 was next"):
        found.apply(wrong)


def test_the_first_request_is_as_the_caller_gave_it():
    request = generate_request("Hello", model="m")
    assert Progress(request).next_request() == request


def test_going_on_asks_for_the_rest_with_what_the_first_edge_settled():
    found = progress()
    found.apply(delta(0, 7, 8, text="ab"))
    found.apply(Accepted(request_id="other", model="other", max_output_tokens=1, seed=1))
    request = found.next_request()
    assert request.text == "Hello"
    assert (request.request_id, request.model, request.max_output_tokens, request.sampling.seed) == ("r", "m", 8, 42)
    assert list(request.resume.token_ids) == [7, 8]


def test_an_answer_the_caller_resumes_itself_goes_on_behind_what_it_had():
    request = generate_request("Hello")
    request.resume.token_ids[:] = [5, 6]
    found = Progress(request)
    found.apply(delta(2, 7))
    assert list(found.next_request().resume.token_ids) == [5, 6, 7]
    assert found.token_ids == [7]


def test_going_on_names_the_answer_even_before_its_first_token_so_that_it_is_charged_once():
    found = Progress(generate_request("Hello"))
    found.apply(Accepted(request_id="r", answer_id="a-1", model="m", max_output_tokens=8, seed=42))
    assert found.next_request().resume.answer_id == "a-1"
    found.apply(delta(0, 7))
    assert (found.next_request().resume.answer_id, list(found.next_request().resume.token_ids)) == ("a-1", [7])


def test_an_edge_that_does_not_name_its_answers_is_asked_as_ever():
    assert not progress().next_request().HasField("resume")


def test_logprobs_are_given_to_who_asked_for_them():
    assert progress(logprobs=True).apply(delta(0, 7, logprobs=[-0.5])).logprobs == (-0.5,)
    assert progress().apply(delta(0, 7, logprobs=[0.0])).logprobs == ()


@given(cuts=st.lists(st.integers(0, 12), max_size=6), total=st.integers(0, 12), repeats=st.booleans())
def test_any_cuts_give_the_whole_answer_once(cuts, total, repeats):
    """Attempts that are cut anywhere, going on where the client is or saying all anew."""
    found = progress()
    for cut in [*cuts, total]:
        start = 0 if repeats else len(found.next_request().resume.token_ids)
        for index in range(start, min(cut, total)):
            found.apply(delta(index, 100 + index, text=chr(97 + index)))
    found.apply(Finished())
    assert found.token_ids == [100 + index for index in range(total)]
    assert found.text == "".join(chr(97 + index) for index in range(total))


def test_a_step_of_a_session_comes_apart_into_the_deltas_of_its_requests():
    step = SessionStep(
        handles=[3, 1, 2],
        texts=["ab", "", "c"],
        first_indexes=[4, 0, 9],
        counts=[2, 0, 1],
        token_ids=[7, 8, 9],
        logprobs=[-1.0, -2.0, 0.0],
    )
    assert list(deltas_of(step)) == [
        (3, delta(4, 7, 8, text="ab", logprobs=[-1.0, -2.0])),
        (1, delta(0)),
        (2, delta(9, 9, text="c", logprobs=[0.0])),
    ]
