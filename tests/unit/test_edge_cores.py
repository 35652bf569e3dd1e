"""The edge's smaller cores: roster, registry, backlog, prefix hashes."""

from array import array
from dataclasses import replace
from types import SimpleNamespace

import pytest

from penstock.chassis.errors import Overloaded
from penstock.edge.flight.effects import Emit
from penstock.edge.flight.plan import Plan
from penstock.edge.flight.state import State
from penstock.edge.flights import Flights
from penstock.edge.links.fingerprint import BYTES, fingerprint
from penstock.edge.links.prefix import MAX_HASHES, prefix_hashes
from penstock.edge.outlets.backlog import Backlog
from penstock.edge.roster import Roster
from penstock.mesh.v1.ticket_pb2 import CatalogEntry
from penstock.v1.inference_pb2 import Sampling

SALT = b"s" * 16


def entry(model, *, digest="d1", workers=1):
    return CatalogEntry(model=model, card_digest=digest, worker_address="w:1", workers_hint=workers)


def passage(ticket_id, size=10):
    return SimpleNamespace(ticket_id=ticket_id, size=size, flight=SimpleNamespace(state=State.QUEUED))


def test_models_of_all_shards_are_served():
    roster = Roster()
    roster.replace("a", [entry("x")], 0.0)
    roster.replace("b", [entry("y")], 0.0)
    assert sorted(roster.entries(0.0)) == ["x", "y"]


def test_the_card_that_most_workers_have_counts():
    roster = Roster()
    roster.replace("a", [entry("x", digest="old", workers=1)], 0.0)
    roster.replace("b", [entry("x", digest="new", workers=3)], 0.0)
    assert roster.entries(0.0)["x"].card_digest == "new"


def test_a_shard_that_starts_again_takes_no_model_away_for_a_moment():
    roster = Roster(linger=10.0)
    roster.replace("a", [entry("x")], 0.0)
    roster.replace("a", [], 5.0)
    assert list(roster.entries(14.9)) == ["x"]
    assert list(roster.entries(15.0)) == []


def test_a_shard_that_is_gone_for_good_takes_its_word_along():
    roster = Roster(linger=10.0)
    roster.replace("a", [entry("x")], 0.0)
    roster.forget("a", 5.0)
    assert list(roster.entries(6.0)) == ["x"]
    assert list(roster.entries(15.0)) == []


def planned(**changes):
    asked = {"model": "m", "prompt_ids": [1, 2], "sampling": Sampling(seed=1), "ignore_eos": False} | changes
    return Plan(max_output_tokens=5, transcript=None, **asked)


def test_parts_of_one_answer_have_one_fingerprint_wherever_they_go_on():
    first = fingerprint("key", planned())
    assert len(first) == BYTES
    assert first == fingerprint("key", planned(prompt_ids=array("I", [1, 2])))
    assert first == fingerprint("key", replace(planned(), max_output_tokens=9, resumed_ids=(3, 4)))


@pytest.mark.parametrize(
    "other",
    [
        {"model": "n"},
        {"prompt_ids": [1, 3]},
        {"prompt_ids": [1, 2, 0]},
        {"sampling": Sampling(seed=2)},
        {"ignore_eos": True},
    ],
)
def test_what_would_be_another_text_has_another_fingerprint_and_so_has_another_key(other):
    assert fingerprint("key", planned()) != fingerprint("key", planned(**other))
    assert fingerprint("key", planned()) != fingerprint("another", planned())


def test_a_full_registry_refuses_by_number_and_by_bytes():
    flights = Flights(max_flights=2, max_bytes=100)
    flights.add(passage("a", 60))
    flights.check_room(40)
    with pytest.raises(Overloaded, match="60 bytes") as failure:
        flights.check_room(41)
    assert failure.value.reason == "EDGE_FULL"
    flights.add(passage("b", 10))
    with pytest.raises(Overloaded):
        flights.check_room(0)


def test_what_grows_is_counted_and_given_back():
    flights = Flights(max_flights=2, max_bytes=100)
    one = passage("a", 60)
    flights.add(one)
    flights.grow(one, 40)
    assert flights.bytes == 100
    with pytest.raises(Overloaded):
        flights.grow(one, 1)
    flights.remove(one, 1.0)
    flights.remove(one, 1.0)
    assert (flights.bytes, len(flights)) == (0, 0)


def test_the_retry_after_of_a_full_edge_follows_the_rate_at_which_places_come_free():
    flights = Flights(max_flights=100, max_bytes=100)
    for number in range(200):  # one ends every 20 ms, so 5 of 100 places are free in 0.1 s
        one = passage(str(number))
        flights.add(one)
        flights.remove(one, 1.0 + number * 0.02)
    with pytest.raises(Overloaded) as failure:
        flights.check_room(1_000)
    assert failure.value.retry_after == pytest.approx(0.1, rel=0.01)


def test_pieces_wait_as_one():
    backlog = Backlog()
    backlog.add(Emit("a", (1,), 7, (-0.5,)))
    backlog.add(Emit("", (2,), 8, (-1.0,)))
    assert backlog.size == 9
    assert backlog.take() == Emit("a", [1, 2], 7, [-0.5, -1.0])
    assert not backlog


def test_text_after_the_last_token_is_a_piece_of_its_own_so_that_a_client_knows_whether_it_has_it():
    backlog = Backlog()
    for each in (Emit("a", (1,), 7, ()), Emit("b", (2,), 8, ()), Emit("cd", (), 9, ())):
        backlog.add(each)
    assert backlog.take() == Emit("ab", [1, 2], 7, [])
    assert backlog.size == 2
    assert backlog.take() == Emit("cd", (), 9, ())
    assert not backlog


def test_a_flight_that_ended_while_its_prompt_was_tokenized_holds_no_bytes():
    flights = Flights(max_flights=2, max_bytes=100)
    left = passage("left")
    flights.add(left)
    flights.remove(left, 1.0)
    flights.grow(left, 40)
    assert flights.bytes == 0


def test_a_piece_alone_is_passed_on_as_it_is():
    backlog = Backlog()
    piece = Emit("a", (1,), 7, ())
    backlog.add(piece)
    assert backlog.take() is piece


def test_prompts_share_hashes_as_far_as_they_share_whole_blocks():
    one, other = list(range(64)), [*range(40), *range(100, 124)]
    hashes, others = prefix_hashes(one, 16, SALT), prefix_hashes(other, 16, SALT)
    assert (len(hashes), len(set(hashes))) == (4, 4)
    assert hashes[:2] == others[:2]
    assert hashes[2] != others[2]
    assert hashes[3] != others[3]  # chained: a later block's hash depends on all before it


def test_tenants_do_not_share_hashes_and_without_a_salt_there_are_none():
    assert set(prefix_hashes(range(64), 16, SALT)).isdisjoint(prefix_hashes(range(64), 16, b"t" * 16))
    assert prefix_hashes(range(64), 16, b"") == []
    assert prefix_hashes(range(64), 0, SALT) == []


def test_hashes_are_bounded_in_number_and_size():
    hashes = prefix_hashes([0] * 10_000, 4, SALT)
    assert len(hashes) == MAX_HASHES
    assert all(0 <= each < 2**64 for each in hashes)
    assert prefix_hashes(range(15), 16, SALT) == []
