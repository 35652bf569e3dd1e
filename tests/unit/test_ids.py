"""Random ids: distinct, of the right form."""

import os
import re

from penstock.chassis import ids

HEX_32 = re.compile("[0-9a-f]{32}")


def test_ids_are_distinct_and_as_long_as_uuids():
    made = {ids.new_id() for _ in range(2_000)}
    assert len(made) == 2_000
    assert all(HEX_32.fullmatch(each) for each in made)


def test_the_kernel_is_asked_once_per_block(monkeypatch):
    calls = []

    def urandom(size):
        calls.append(size)
        return bytes(range(256)) * (size // 256)

    monkeypatch.setattr(os, "urandom", urandom)
    source = ids.RandomSource()
    made = [source.hex(16) for _ in range(257)]
    assert calls == [4_096, 4_096]
    assert made[:2] == [bytes(range(16)).hex(), bytes(range(16, 32)).hex()]
    source.clear()
    assert source.hex(1) == "00"
    assert len(calls) == 3


def test_ids_of_traces_are_never_zero(monkeypatch):
    source = ids.RandomSource()
    blocks = iter((bytes(4_096), b"\1" * 4_096))
    monkeypatch.setattr(os, "urandom", lambda _: next(blocks))
    monkeypatch.setattr(ids, "_source", source)
    assert ids.new_span_id() == "01" * 8
