"""The log of a response's output: the same deltas at every edge that has the tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.edge.lifecycle.effects import Emit
from penstock.edge.stored.output_log import OutputLog, PartsBroken

TEXTS = st.lists(st.text(max_size=4), max_size=12)


def delta(index, text, tops):
    if tops is None:
        return Emit(text, (index + 100,), index, ())
    ids = [index + 200 + each for each in range(tops)]
    return Emit(text, (index + 100,), index, (-0.5 * index,), ids, [-1.0 * each for each in range(tops)])


def log_of(texts, tops=None):
    log = OutputLog()
    for index, text in enumerate(texts):
        log.append(delta(index, text, tops))
    return log


@given(TEXTS, st.sampled_from([None, 0, 3]))
def test_each_token_is_returned_as_it_was_added(texts, tops):
    log = log_of(texts, tops)
    assert [log[index] for index in range(len(log))] == [delta(index, text, tops) for index, text in enumerate(texts)]
    assert log.text == "".join(texts)


@given(TEXTS, st.sampled_from([None, 0, 3]), st.lists(st.integers(0, 12), max_size=6))
def test_a_log_of_stored_parts_is_equal_also_if_they_overlap(texts, tops, starts):
    log, copy = log_of(texts, tops), OutputLog()
    for start in [*sorted(starts), 0]:
        if start <= len(copy):
            part = log.part(min(start, len(log)))
            copy.add_part(min(start, len(log)), part)
    assert [copy[index] for index in range(len(copy))] == [log[index] for index in range(len(log))]


def test_a_part_that_leaves_a_gap_is_refused():
    log = log_of(["a", "b", "c"])
    with pytest.raises(PartsBroken, match="from 2 on do not follow 0"):
        OutputLog().add_part(2, log.part(2))


def test_a_part_whose_text_does_not_fit_is_refused():
    part = log_of(["a", "b"]).part(0)
    part.text_bytes[0] = 7
    with pytest.raises(PartsBroken):
        OutputLog().add_part(0, part)
