"""Random ids: distinct, of the right form."""

import os
import re

from penstock.chassis import ids
from penstock.chassis.observability.telemetry import trace_id_of, unrecorded_traceparent

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


def test_an_unrecorded_request_keeps_the_trace_of_its_caller():
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    child = unrecorded_traceparent(parent)
    assert child.startswith(f"00-{'ab' * 16}-")
    assert child.endswith("-00")
    assert child[36:52] != "cd" * 8
    for malformed in ("", "00-xx", f"00-{'0' * 32}-{'cd' * 8}-01"):
        assert HEX_32.fullmatch(trace_id_of(unrecorded_traceparent(malformed)))
