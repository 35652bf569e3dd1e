"""Lines with the custom_id of an earlier line."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.batch.jobs.custom_ids import ENTRY_BYTES, RepeatedIds


def repeated(ids, parts):
    found = []
    for part in range(parts):
        part_ids = RepeatedIds(part, parts)
        for number, each in enumerate(ids):
            part_ids.add(number, each)
        found += part_ids.repeated()
    return sorted(found)


@given(st.lists(st.sampled_from(["a", "b", "c", "ä", "line-1", "line-2"]), max_size=30), st.integers(1, 5))
def test_each_line_but_the_first_with_an_id_is_found_whatever_the_parts_are(ids, parts):
    expected = [number for number, each in enumerate(ids) if each in ids[:number]]
    assert repeated(ids, parts) == expected


def test_ten_thousand_different_ids_are_different_and_take_sixteen_bytes_each():
    found = RepeatedIds(0, 1)
    for number in range(10_000):
        found.add(number, f"line-{number}")
    assert found.repeated() == []
    assert sum(map(len, found._buckets)) == 10_000 * ENTRY_BYTES == 160_000


def test_parts_share_the_ids_evenly():
    parts = [RepeatedIds(part, 4) for part in range(4)]
    for number in range(4_000):
        for each in parts:
            each.add(number, f"line-{number}")
    sizes = [sum(map(len, each._buckets)) // ENTRY_BYTES for each in parts]
    assert sum(sizes) == 4_000
    assert min(sizes) > 800
