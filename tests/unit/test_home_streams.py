"""When a process of a region opens another stream to its home region, and whose catalog it takes."""

from dataclasses import dataclass

import pytest

from penstock.auth.regions.spending.home_streams import MAX_STREAMS, PAUSE_S, REFUSED_PAUSE_S, HomeStreams

NOW = 1_000.0
CATALOG, DIFFERENT = "catalog", "different"


@dataclass(eq=False)
class Stream:
    instance_id: str = "eu-auth-1"
    catalog: str | None = CATALOG
    is_up: bool = True


def opened(*found):
    streams = HomeStreams(NOW)
    for each in found:
        streams.on_opened(each)
    return streams


def accepts(catalog):
    return catalog == CATALOG


@pytest.mark.parametrize(
    ("has_partitions", "is_covered", "needs"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_a_stream_is_opened_until_each_own_partition_talks_to_its_owner(has_partitions, is_covered, needs):
    streams = opened(Stream())
    streams.choose_source(accepts)
    assert streams.needs_another(has_partitions=has_partitions, is_covered=is_covered) is needs


def test_a_stream_is_opened_while_there_is_no_catalog():
    assert opened().needs_another(has_partitions=True, is_covered=True)


def test_the_number_of_streams_is_bounded():
    found = [Stream(f"eu-auth-{each}", None) for each in range(MAX_STREAMS)]
    streams = opened(*found)
    assert not streams.needs_another(has_partitions=True, is_covered=False)
    streams.on_ended(found[0])
    assert streams.needs_another(has_partitions=True, is_covered=False)


def test_useless_streams_are_opened_ever_more_slowly_and_a_useful_one_ends_this():
    first, second = Stream(), Stream("eu-auth-2")
    streams = opened(first, second)
    pauses = []
    for _ in range(5):
        streams.on_settled(second, partitions=0)
        pauses.append(streams.pause)
    assert pauses == [0.5, 1.0, *[PAUSE_S[1]] * 3]
    streams.on_settled(second, partitions=1)
    assert streams.pause == PAUSE_S[0]


def test_a_stream_that_ended_before_its_process_was_known_is_useless_and_the_only_one_is_useful():
    streams = opened(stream := Stream())
    streams.on_settled(stream, partitions=0)
    assert streams.pause == PAUSE_S[0]
    stream.is_up = False
    streams.on_settled(stream, partitions=0)
    assert streams.pause == 2 * PAUSE_S[0]


def test_the_pause_is_short_again_after_all_partitions_talked():
    streams = opened(stream := Stream(), Stream("eu-auth-2"))
    streams.on_settled(stream, partitions=0)
    streams.choose_source(accepts)
    streams.needs_another(has_partitions=True, is_covered=True)
    assert streams.pause == PAUSE_S[0]


def test_two_streams_to_one_process_are_found_if_the_other_one_is_up():
    first, second = Stream(), Stream()
    streams = opened(first, second)
    assert streams.is_duplicate(second)
    first.is_up = False
    assert not streams.is_duplicate(second)


def test_the_source_is_the_oldest_stream_that_is_up_and_has_the_whole_catalog():
    down, partial, first, second = Stream(is_up=False), Stream(catalog=None), Stream("eu-auth-3"), Stream("eu-auth-4")
    streams = opened(down, partial, first, second)
    assert streams.choose_source(accepts) == []
    assert streams.source is first


def test_a_stream_whose_catalog_must_not_be_taken_over_is_left_and_the_next_one_waits():
    wrong, right = Stream(catalog=DIFFERENT), Stream("eu-auth-2")
    streams = opened(wrong)
    assert streams.choose_source(accepts) == [wrong]
    assert streams.source is None
    assert streams.pause == REFUSED_PAUSE_S
    streams.on_opened(right)
    assert streams.pause == PAUSE_S[0]
    assert streams.choose_source(accepts) == [wrong]
    assert streams.source is right


def test_the_loss_of_the_source_is_that_of_the_catalog_and_another_stream_takes_its_place():
    first, second = Stream(), Stream("eu-auth-2")
    streams = opened(first, second)
    assert streams.unfollowed(NOW + 5.0) == 5.0
    streams.choose_source(accepts)
    assert streams.unfollowed(NOW + 5.0) == 0.0
    assert not streams.on_down(second, NOW + 6.0)
    first.is_up = False
    assert streams.on_down(first, NOW + 7.0)
    assert (streams.source, streams.unfollowed(NOW + 10.0)) == (None, 3.0)
    streams.choose_source(accepts)
    assert streams.source is second
    assert repr(streams) == "<HomeStreams 2, source eu-auth-2>"
