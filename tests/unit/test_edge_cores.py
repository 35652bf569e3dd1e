"""Small cores of the edge: model registry, request table, response buffer, block hashes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from penstock.chassis.errors import Overloaded
from penstock.chassis.prefix_depths import PREFIX_DEPTHS
from penstock.edge.lifecycle.effects import Emit
from penstock.edge.lifecycle.memory import MemoryBudget
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.lifecycle.record import RequestState
from penstock.edge.lifecycle.sinks import ResponseBuffer, SessionSink, step_frame
from penstock.edge.lifecycle.table import ActiveRequests
from penstock.edge.models.registry import ModelRegistry
from penstock.edge.models.version_balancer import VersionBalancer
from penstock.edge.request.spec import ChatInput, Message, TextInput, TokenInput
from penstock.edge.upstreams.hashing import ANSWER_FINGERPRINT_BYTES, answer_fingerprint, block_hashes
from penstock.mesh.v1.ticket_pb2 import CatalogEntry
from penstock.v1.inference_pb2 import Sampling

CACHE_SALT = b"s" * 16


def entry(model, *, digest="d1", workers=1):
    return CatalogEntry(model=model, card_digest=digest, worker_address="w:1", workers_hint=workers)


def active_request(ticket_id, size=10):
    return SimpleNamespace(ticket_id=ticket_id, size_bytes=size, request=SimpleNamespace(state=RequestState.QUEUED))


def test_models_of_all_shards_are_served():
    roster = ModelRegistry()
    roster.update_shard("a", [entry("x")], 0.0)
    roster.update_shard("b", [entry("y")], 0.0)
    assert sorted(roster.entries(0.0)) == ["x@d1", "y@d1"]
    assert sorted(roster.versions(0.0)) == ["x", "y"]


def test_the_address_of_the_largest_pool_is_used():
    roster = ModelRegistry()
    roster.update_shard("a", [entry("x", workers=1)], 0.0)
    roster.update_shard("b", [entry("x", workers=3)], 0.0)
    assert roster.entries(0.0)["x@d1"].workers_hint == 3


def test_two_versions_of_one_name_are_two_models():
    roster = ModelRegistry()
    roster.update_shard("a", [entry("x", digest="old"), entry("x", digest="new", workers=3)], 0.0)
    assert {key: each.workers_hint for key, each in roster.versions(0.0)["x"].items()} == {"x@old": 1, "x@new": 3}


def test_a_version_is_replaced_once_every_shard_names_another_one_only():
    roster = ModelRegistry(removal_delay=10.0)
    old, new = entry("x", digest="old"), entry("x", digest="new")
    assert roster.update_shard("a", [old], 0.0)
    assert not roster.update_shard("a", [entry("x", digest="old", workers=2)], 0.0)
    assert roster.update_shard("b", [old, new], 0.0)
    assert roster.update_shard("a", [new], 1.0)
    assert not roster.is_replaced("x@old", "x", 1.0)
    assert roster.update_shard("b", [new], 1.0)
    assert roster.is_replaced("x@old", "x", 1.0)
    assert list(roster.versions(1.0)["x"]) == ["x@new"]
    assert "x@old" in roster.entries(10.9)  # for answers that continue: a worker of it may be restarting
    assert "x@old" not in roster.entries(11.0)


def test_a_model_that_is_lost_altogether_is_not_replaced():
    roster = ModelRegistry()
    roster.update_shard("a", [entry("x", digest="old")], 0.0)
    roster.update_shard("a", [], 1.0)
    assert not roster.is_replaced("x@old", "x", 1.0)
    assert list(roster.versions(1.0)["x"]) == ["x@old"]


def requests_by_version(weights, count):
    balancer = VersionBalancer()
    chosen = [balancer.choose(weights) for _ in range(count)]
    return {version: chosen.count(version) for version in weights}, chosen


def test_each_version_receives_requests_in_proportion_to_its_capacity():
    counts, chosen = requests_by_version({"old": 7, "new": 1}, 800)
    assert counts == {"old": 700, "new": 100}
    assert all("new" in chosen[start : start + 8] for start in range(0, 800, 8))


def test_a_first_new_worker_does_not_receive_all_requests_and_the_last_old_one_keeps_its_share():
    balancer = VersionBalancer()
    for _ in range(100):
        assert balancer.choose({"old": 4}) == "old"
    chosen = [balancer.choose({"old": 3, "new": 1}) for _ in range(8)]
    assert chosen.count("new") == 2
    chosen = [balancer.choose({"old": 1, "new": 3}) for _ in range(8)]
    assert chosen.count("old") == 2


def test_a_restarting_shard_does_not_remove_models_at_once():
    roster = ModelRegistry(removal_delay=10.0)
    roster.update_shard("a", [entry("x")], 0.0)
    roster.update_shard("a", [], 5.0)
    assert list(roster.entries(14.9)) == ["x@d1"]
    assert list(roster.entries(15.0)) == []


def test_a_removed_shard_removes_its_models():
    roster = ModelRegistry(removal_delay=10.0)
    roster.update_shard("a", [entry("x")], 0.0)
    roster.remove_shard("a", 5.0)
    assert list(roster.entries(6.0)) == ["x@d1"]
    assert list(roster.entries(15.0)) == []


def planned(**changes):
    fields = {"model": "m", "prompt_ids": [1, 2], "sampling": Sampling(seed=1), "ignore_eos": False} | changes
    return GenerationPlan(max_output_tokens=5, detokenizer=None, **fields)


def test_all_requests_of_one_answer_have_one_fingerprint():
    first = answer_fingerprint("key", TokenInput((1, 2)), planned())
    assert len(first) == ANSWER_FINGERPRINT_BYTES
    longer = replace(planned(), max_output_tokens=9, resumed_ids=(3, 4))
    assert first == answer_fingerprint("key", TokenInput((1, 2)), longer)


def test_the_fingerprint_of_an_answer_does_not_depend_on_the_tokenizer():
    for prompt in (TextInput("hi"), ChatInput((Message("user", "hi"),))):
        old, new = planned(prompt_ids=[7]), planned(prompt_ids=[1, 8], model_version="new")
        assert answer_fingerprint("key", prompt, old) == answer_fingerprint("key", prompt, new)


@pytest.mark.parametrize("other", [{"model": "n"}, {"sampling": Sampling(seed=2)}, {"ignore_eos": True}])
def test_other_settings_and_other_keys_have_other_fingerprints(other):
    prompt = TextInput("hi")
    first = answer_fingerprint("key", prompt, planned())
    assert first != answer_fingerprint("key", prompt, planned(**other))
    assert first != answer_fingerprint("another", prompt, planned())


def test_other_prompts_have_other_fingerprints():
    prompts = [
        *(TokenInput((1, 2)), TokenInput((1, 3)), TokenInput((1, 2, 0)), TextInput("ab"), TextInput("abc")),
        *(ChatInput((Message("user", "ab"),)), ChatInput((Message("usera", "b"),))),
        ChatInput((Message("user", "a"), Message("user", "b"))),
    ]
    assert len({answer_fingerprint("key", prompt, planned()) for prompt in prompts}) == len(prompts)


def test_a_full_table_rejects_by_number_and_by_bytes():
    requests = ActiveRequests(max_active_requests=2, max_held_bytes=133)
    requests.add(active_request("a", 60))
    requests.check_room(40)
    with pytest.raises(Overloaded, match="60 bytes") as failure:
        requests.check_room(41)
    assert failure.value.reason == "EDGE_FULL"
    requests.add(active_request("b", 10))
    with pytest.raises(Overloaded):
        requests.check_room(0)


def test_added_bytes_are_counted_and_released():
    requests = ActiveRequests(max_active_requests=2, max_held_bytes=133)
    one = active_request("a", 60)
    requests.add(one)
    requests.add_bytes(one, 40)
    assert requests.memory.held_bytes == 100
    with pytest.raises(Overloaded):
        requests.add_bytes(one, 1)
    requests.remove(one, 1.0)
    requests.remove(one, 1.0)
    assert (requests.memory.held_bytes, len(requests)) == (0, 0)


def test_the_retry_after_of_a_full_edge_follows_the_rate_of_completions():
    requests = ActiveRequests(max_active_requests=100, max_held_bytes=100)
    for number in range(200):  # one ends every 20 ms, so 5 of 100 places are free in 0.1 s
        one = active_request(str(number))
        requests.add(one)
        requests.remove(one, 1.0 + number * 0.02)
    with pytest.raises(Overloaded) as failure:
        requests.check_room(1_000)
    assert failure.value.retry_after == pytest.approx(0.1, rel=0.01)


def test_buffered_deltas_are_merged():
    backlog = ResponseBuffer(MemoryBudget(1_000))
    backlog.add(Emit("a", (1,), 7, (-0.5,)))
    backlog.add(Emit("", (2,), 8, (-1.0,)))
    assert backlog.size_bytes == 9
    assert backlog.pop() == Emit("a", [1, 2], 7, [-0.5, -1.0])
    assert not backlog


def test_text_after_the_last_token_is_a_delta_of_its_own():
    backlog = ResponseBuffer(MemoryBudget(1_000))
    for each in (Emit("a", (1,), 7, ()), Emit("b", (2,), 8, ()), Emit("cd", (), 9, ())):
        backlog.add(each)
    assert backlog.pop() == Emit("ab", [1, 2], 7, [])
    assert backlog.size_bytes == 2
    assert backlog.pop() == Emit("cd", (), 9, ())
    assert not backlog


def test_a_request_that_ended_while_tokenizing_holds_no_bytes():
    requests = ActiveRequests(max_active_requests=2, max_held_bytes=133)
    left = active_request("left")
    requests.add(left)
    requests.remove(left, 1.0)
    requests.add_bytes(left, 40)
    assert requests.memory.held_bytes == 0


def test_a_single_delta_is_returned_unchanged():
    backlog = ResponseBuffer(MemoryBudget(1_000))
    delta = Emit("a", (1,), 7, ())
    backlog.add(delta)
    assert backlog.pop() is delta


def test_prompts_share_hashes_as_far_as_they_share_whole_blocks():
    one, other = list(range(64)), [*range(40), *range(100, 124)]
    hashes, others = block_hashes(one, 16, CACHE_SALT), block_hashes(other, 16, CACHE_SALT)
    assert (len(hashes), len(set(hashes))) == (4, 4)
    assert hashes[:2] == others[:2]
    assert hashes[2] != others[2]
    assert hashes[3] != others[3]  # chained: a later block's hash depends on all before it


def test_tenants_do_not_share_hashes_and_without_a_salt_there_are_none():
    assert set(block_hashes(range(64), 16, CACHE_SALT)).isdisjoint(block_hashes(range(64), 16, b"t" * 16))
    assert block_hashes(range(64), 16, b"") == []
    assert block_hashes(range(64), 0, CACHE_SALT) == []


def test_hashes_are_bounded_in_number_and_size():
    hashes = block_hashes([0] * 10_000, 4, CACHE_SALT)
    assert len(hashes) == len(PREFIX_DEPTHS)
    assert all(0 <= each < 2**64 for each in hashes)
    assert block_hashes(range(15), 16, CACHE_SALT) == []


def test_the_likeliest_tokens_of_a_session_are_counted_by_request():
    stream = SimpleNamespace(on_output=lambda sink: None)
    sinks = [SessionSink(stream, handle, MemoryBudget(1_000)) for handle in (5, 3, 9)]
    sinks[0].send_delta(Emit("ab", (7,), 4, ()))
    sinks[1].send_delta(Emit("c", (8,), 0, (-0.5,), (8, 2), (-0.5, -1.0)))
    sinks[1].send_delta(Emit("d", (9,), 1, (-1.5,), (9, 3), (-1.5, -2.0)))
    sinks[2].send_delta(Emit("e", (), 6, ()))
    step = step_frame(sinks).step
    assert (step.top_counts, step.top_token_ids, step.top_logprobs) == ([0, 2, 0], [8, 2, 9, 3], [-0.5, -1, -1.5, -2])


def test_a_reader_far_behind_receives_the_likeliest_tokens_of_each_token():
    memory = MemoryBudget(1 << 20)
    buffer = ResponseBuffer(memory)
    for index in range(40):
        buffer.add(Emit("a", (index,), index, (-0.5,), (index, index + 1), (-0.5, -1.5)))
    assert buffer.packed_bytes
    merged = buffer.pop()
    assert list(merged.top_token_ids) == [each for index in range(40) for each in (index, index + 1)]
    assert list(merged.top_logprobs) == [-0.5, -1.5] * 40
    assert memory.unread_bytes == 0


def test_the_output_of_all_requests_of_a_session_is_one_frame_of_parallel_arrays():
    pending: list[SessionSink] = []
    stream = SimpleNamespace(on_output=pending.append)
    sinks = [SessionSink(stream, handle, MemoryBudget(1_000)) for handle in (5, 3, 9)]
    sinks[0].send_delta(Emit("ab", (7,), 4, ()))
    sinks[1].send_delta(Emit("c", (8,), 0, (-0.5,)))
    sinks[1].send_delta(Emit("d", (9,), 1, (-1.5,)))
    sinks[2].send_delta(Emit("e", (), 6, ()))
    step = step_frame(sinks).step
    assert (step.handles, step.texts, step.first_indexes) == ([5, 3, 9], ["ab", "cd", "e"], [4, 0, 6])
    assert (step.counts, step.token_ids, step.logprobs) == ([1, 2, 0], [7, 8, 9], [0.0, -0.5, -1.5])
    assert {sink.handle for sink in pending} == {5, 3, 9}
    assert not any(sink.buffer for sink in sinks)
