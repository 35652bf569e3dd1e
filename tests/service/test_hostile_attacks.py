"""Attacks of the hostile proof against servers that record them: each really sends what its name says."""

import re
from contextlib import suppress

import hpack
import orjson
import pytest

from penstock.proofs.hostile.attacks import (
    ATTACKS,
    attack,
    false_peers,
    floods,
    guesses,
    held_connections,
    held_streams,
    large_headers,
)
from penstock.proofs.hostile.attacks.header_blocks import continuation_flood, hpack_bomb
from penstock.proofs.hostile.attacks.large_bodies import json_bombs, text_and_leave
from penstock.proofs.hostile.attacks.resets import rapid_reset
from penstock.proofs.hostile.corpus.tier_streams import ADMIT
from penstock.proofs.hostile.ports import PortKind
from penstock.proofs.hostile.wire.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
)
from raw_peers import KEY, attack_run, recording_server

PRIORITY, WINDOW_UPDATE = 2, 8


async def test_rapid_reset_sends_each_request_with_its_reset_and_stops_at_its_count():
    async with recording_server() as (recorder, port):
        run = attack_run(port, seconds=3.0, count=100)
        await rapid_reset(run)
    assert recorder.count(HEADERS) == recorder.count(RST_STREAM) == 100
    assert (run.report.sent, run.report.connections, run.report.cut) == (100, 1, 0)


@pytest.mark.parametrize(
    ("flood", "kind"),
    [
        (floods.settings_flood, SETTINGS),
        (floods.ping_flood, PING),
        (floods.window_update_flood, WINDOW_UPDATE),
        (floods.priority_flood, PRIORITY),
        (floods.empty_frames, DATA),
    ],
)
async def test_a_flood_sends_frames_of_one_kind_on_one_connection(flood, kind):
    async with recording_server() as (recorder, port):
        run = attack_run(port)
        await flood(run)
    flooded = [frame for frame in recorder.frames if frame[0] == kind and not frame[1] & (ACK | END_STREAM)]
    assert len(flooded) >= floods.BATCH
    assert recorder.connections == 1
    if kind == DATA:
        assert {frame[3] for frame in flooded} == {0}


async def test_an_attack_that_is_cut_connects_again_within_its_bound(monkeypatch):
    monkeypatch.setattr(attack, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(attack, "RECONNECT_S", 0.0)
    async with recording_server(cuts_after=10) as (recorder, port):
        run = attack_run(port, seconds=20.0)
        await floods.ping_flood(run)
    assert recorder.connections == run.report.connections == run.report.cut == 3


async def test_an_attack_stops_at_its_bytes(monkeypatch):
    monkeypatch.setattr(attack, "MAX_BYTES", 10_000)
    async with recording_server() as (_, port):
        run = attack_run(port, seconds=20.0)
        await floods.ping_flood(run)
    assert 10_000 <= run.report.sent_bytes < 20_000


async def test_a_continuation_flood_never_ends_its_headers():
    async with recording_server() as (recorder, port):
        await continuation_flood(attack_run(port))
    assert recorder.count(CONTINUATION) > 3
    assert not [frame for frame in recorder.frames if frame[0] in (HEADERS, CONTINUATION) and frame[1] & END_HEADERS]


async def test_an_hpack_bomb_is_a_thousand_times_larger_when_decoded():
    async with recording_server() as (recorder, port):
        await hpack_bomb(attack_run(port))
    blocks = [frame[3] for frame in recorder.frames if frame[0] == HEADERS]
    decoder = hpack.Decoder(max_header_list_size=1 << 30)
    decoder.decode(blocks[0], raw=True)
    decoded = sum(len(value) for _, value in decoder.decode(blocks[1], raw=True))
    assert decoded > 1_000 * len(blocks[1])


async def test_readers_with_a_window_of_zero_open_their_streams_and_grant_nothing():
    async with recording_server() as (recorder, port):
        await held_streams.zero_window_readers(attack_run(port))
    assert recorder.count(HEADERS) == held_streams.ZERO_WINDOW_STREAMS
    assert not recorder.count(WINDOW_UPDATE)
    first_settings = next(frame[3] for frame in recorder.frames if frame[0] == SETTINGS)
    assert (4).to_bytes(2) + bytes(4) in first_settings, "INITIAL_WINDOW_SIZE is 0"


async def test_streams_over_the_limit_stay_open(monkeypatch):
    monkeypatch.setattr(held_streams, "MANY_STREAMS", 300)
    monkeypatch.setattr(held_streams, "SETTLE_S", 0.0)
    async with recording_server() as (recorder, port):
        run = attack_run(port, seconds=0.6)
        await held_streams.streams_over_the_limit(run)
    assert run.report.findings == {held_streams.OPEN_STREAMS: 300}
    assert not [frame for frame in recorder.frames if frame[0] == HEADERS and frame[1] & END_STREAM]


async def test_messages_stay_unfinished(monkeypatch):
    monkeypatch.setattr(held_streams, "UNFINISHED_MESSAGES", 3)
    monkeypatch.setattr(held_streams, "MESSAGE_BYTES", 1 << 16)
    async with recording_server() as (recorder, port):
        await held_streams.unfinished_messages(attack_run(port))
    sent = sum(frame[3] for frame in recorder.frames if frame[0] == DATA)
    assert sent == 3 * (5 + (1 << 16) - held_streams.UNSENT_BYTES)


async def test_a_text_is_sent_whole_and_its_call_reset():
    async with recording_server() as (recorder, port):
        await text_and_leave(attack_run(port))
    sent = sum(frame[3] for frame in recorder.frames if frame[0] == DATA)
    assert sent >= 4_000_000
    assert recorder.count(RST_STREAM) >= 1


async def test_guessed_keys_differ_and_none_is_the_true_one():
    async with recording_server() as (recorder, port):
        await guesses.key_guesses(attack_run(port))
    decoder = hpack.Decoder()
    keys = [dict(decoder.decode(frame[3]))["authorization"] for frame in recorder.frames if frame[0] == HEADERS]
    assert len(keys) == len(set(keys)) >= guesses.BATCH
    assert f"Bearer {KEY}" not in keys


async def test_a_false_edge_vouches_for_keys():
    async with recording_server(PortKind.AUTH) as (recorder, port):
        run = attack_run(port)
        await false_peers.vouch_guesses(run)
    (path,) = [dict(hpack.Decoder().decode(frame[3]))[":path"] for frame in recorder.frames if frame[0] == HEADERS]
    assert path == ADMIT.path
    assert run.report.sent > false_peers.BATCH
    assert not run.report.accepted


async def test_half_headers_never_end_and_their_connections_are_counted():
    async with recording_server(PortKind.EDGE_HTTP, speaks_http2=False) as (recorder, port):
        run = attack_run(port)
        await held_connections.half_headers(run)
    assert recorder.connections == held_connections.HALF_HEADERS
    assert b"\r\n\r\n" not in recorder.received
    assert run.report.findings == {held_connections.HELD: held_connections.HALF_HEADERS}


async def test_slow_bodies_are_announced_and_never_finished(monkeypatch):
    monkeypatch.setattr(held_connections, "LARGE_BODY_BYTES", 10_000)
    monkeypatch.setattr(held_connections, "BYTE_INTERVAL_S", 0.1)
    async with recording_server(PortKind.EDGE_HTTP, speaks_http2=False) as (recorder, port):
        await held_connections.slow_bodies(attack_run(port))
    lengths = [int(each) for each in re.findall(rb"Content-Length: (\d+)", bytes(recorder.received))]
    assert lengths.count(16 << 20) == held_connections.LARGE_BODIES
    assert lengths.count(4_096) == held_connections.SMALL_BODIES
    assert len(recorder.received) < held_connections.LARGE_BODIES * 20_000


async def test_a_header_line_has_no_end(monkeypatch):
    monkeypatch.setattr(large_headers, "HEADER_LINE_BYTES", 1 << 20)
    async with recording_server(PortKind.EDGE_HTTP, speaks_http2=False) as (recorder, port):
        await large_headers.header_line(attack_run(port))
    line = bytes(recorder.received).partition(b"X-Long: ")[2].partition(b"\r\n")[0].partition(b"GET ")[0]
    assert len(line) == 1 << 20


async def test_pipelined_requests_are_on_one_connection():
    async with recording_server(PortKind.EDGE_HTTP, speaks_http2=False) as (recorder, port):
        await large_headers.pipelining(attack_run(port))
    assert recorder.connections == 1
    assert bytes(recorder.received).count(b"GET /v1/models") >= large_headers.PIPELINED_OF_A_PIECE


@pytest.mark.parametrize("bomb", json_bombs(), ids=["arrays", "deep", "digits", "key", "objects", "messages"])
def test_a_json_bomb_fits_into_a_body_and_begins_as_json(bomb):
    assert 1 << 17 < len(bomb) <= 16 << 20
    assert bomb[:1] in b"[{"
    assert bomb[-1:] in b"]}"


def test_bombs_of_arrays_and_objects_are_valid_json():
    arrays, _, _, key, objects, messages = json_bombs(30_000)
    for bomb in (arrays, key, objects, messages):
        assert orjson.loads(bomb)


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_on_a_port_on_which_nothing_listens_ends_in_time(name):
    kind = ATTACKS[name].kinds[0]
    async with recording_server(kind) as (_, port):
        pass
    run = attack_run(port, seconds=0.05)
    with suppress(OSError):
        await ATTACKS[name].run(run)
    assert not run.report.accepted
    assert run.report.sent == 0 or not run.report.findings.get(held_connections.HELD)
