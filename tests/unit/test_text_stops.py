from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.edge.text.stops import StopStrings

FEW_LETTERS = st.text(alphabet="ab\n", max_size=30)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4)


def first_stop(text, stops):
    """Find by definition the stop string that is complete at the earliest character, the longest of several."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - len(max(ending, key=len))], max(ending, key=len)
    return text, None


def fed(text, stops, cuts):
    matcher = StopStrings(stops)
    borders = sorted({each % (len(text) + 1) for each in cuts} | {0, len(text)})
    shown = ""
    for start, end in pairwise(borders):
        safe, stop = matcher.feed(text[start:end])
        shown += safe
        if stop is not None:
            return shown, stop
    return shown + matcher.flush(), None


@given(FEW_LETTERS, STOPS, st.lists(st.integers(0, 100)))
def test_text_before_the_first_complete_stop_is_shown_for_any_split(text, stops, cuts):
    assert fed(text, stops, cuts) == first_stop(text, stops)


@given(FEW_LETTERS, STOPS)
def test_held_back_is_exactly_what_may_still_become_a_stop(text, stops):
    matcher, shown = StopStrings(stops), ""
    for end, char in enumerate(text, start=1):
        safe, stop = matcher.feed(char)
        if stop is not None:
            return
        shown += safe
        prefixes = [stop[:size] for stop in stops for size in range(1, len(stop)) if text[:end].endswith(stop[:size])]
        assert text[:end] == shown + max(prefixes, key=len, default="")


def test_a_stop_string_across_three_deltas_is_found_and_not_shown():
    matcher = StopStrings(["END."])
    assert [matcher.feed(text) for text in ("the E", "N", "D. more")] == [("the ", None), ("", None), ("", "END.")]


def test_a_false_start_is_shown_as_soon_as_it_cannot_become_a_stop():
    matcher = StopStrings(["###"])
    assert [matcher.feed(text) for text in ("a##", "b", "#")] == [("a", None), ("##b", None), ("", None)]
    assert matcher.flush() == "#"


def test_nothing_is_safe_after_a_stop():
    matcher = StopStrings(["x"])
    assert matcher.feed("ax") == ("a", "x")
    assert matcher.feed("more") == ("", "x")
    assert matcher.flush() == ""


def test_without_stops_nothing_is_held():
    matcher = StopStrings([])
    assert matcher.feed("text") == ("text", None)
    assert matcher.flush() == ""
