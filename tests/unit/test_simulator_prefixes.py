"""Prompts with shared prefixes reuse cached blocks, and tickets are placed where their blocks are."""

import json
import os
import subprocess
import sys

import pytest

from penstock.chassis.prefix_depths import PREFIX_DEPTHS
from penstock.edge.upstreams.hashing import block_hashes
from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario_file import read_scenario, scenario_of
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.shared_prefixes import NO_PREFIX, SharedPrefix, salt_of

CHAT_TENANT = {
    "name": "chat",
    "arrivals": {"rate": 20.0},
    "prompt": {"kind": "uniform", "low": 600, "high": 700},
    "output": {"tokens": 20},
}
TRACE_SCENARIO = """
duration = 4.0
[[workers]]
count = 6
slots = 8
[[tenants]]
name = "chat"
trace = { kind = "mooncake", path = "conversation.jsonl" }
"""
BURSTY_SCENARIO = """
duration = 6.0
[[workers]]
count = 16
slots = 8
[[tenants]]
name = "chat"
arrivals = { kind = "bursty", rate = 120.0, on = 0.5, off = 0.5 }
prompt = { kind = "uniform", low = 1030, high = 2000 }
output = { kind = "uniform", low = 10, high = 80 }
prefix = { tokens = 1024, texts = 3, share = 0.6 }
"""


def run_of(*tenants, **fields):
    """Run under the policy that rejects no request, so that TTFT targets have no effect."""
    fields = {"tenants": list(tenants), "duration": 10.0, "seed": 1, "queues": {"policy": "fair"}, **fields}
    return Simulation(scenario_of(fields)).run()


def prefixes_of(run):
    return figures_of(run)["prefix_cache"]


def conversation(path, turns=5, speakers=12):
    """Write a trace in which every turn repeats all turns before it."""
    rows = [
        {
            "timestamp": 600 * turn + 40 * speaker,
            "input_length": 512 * (turn + 1) + 9,
            "output_length": 12,
            "hash_ids": [0, *(1 + speaker * turns + each for each in range(turn)), 10_000 + speaker * turns + turn],
        }
        for turn in range(turns)
        for speaker in range(speakers)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def test_prompts_share_the_tokens_of_equal_pieces():
    one, other = SharedPrefix((3, 5), 16), SharedPrefix((3, 6), 16)
    first, second, third = one.token_ids(40, 1), one.token_ids(40, 2), other.token_ids(40, 3)
    assert len(first) == len(third) == 40
    assert first[:32] == second[:32]
    assert not set(first[32:]) & set(second[32:])
    assert first[:16] == third[:16]
    assert not set(first[16:32]) & set(third)
    assert one.token_ids(20, 1) == first[:20]
    assert not set(NO_PREFIX.token_ids(40, 1)) & set(NO_PREFIX.token_ids(40, 2))


def test_a_system_prompt_is_computed_once():
    run = run_of({**CHAT_TENANT, "prefix": {"tokens": 512}})
    requests = run.ledger.requests
    assert len(requests) > 150
    assert {each.cached_tokens for each in requests[1:]} == {512}
    assert requests[0].engine_tokens == requests[0].prompt_tokens + requests[0].output_tokens - 1
    assert all(each.engine_tokens == each.prompt_tokens + each.output_tokens - 1 - 512 for each in requests[1:])
    figures = figures_of(run)
    assert figures["prefix_cache"]["hit_share"] == pytest.approx(figures["prefix_cache"]["repeated_share"])
    assert figures["engine_tokens_wasted"] == 0


def test_tenants_do_not_share_cached_blocks():
    pair = [{**CHAT_TENANT, "name": name, "arrivals": {"rate": 0.2}, "prefix": {"tokens": 512}} for name in "ab"]
    run = run_of(*pair, duration=30.0)
    for name in "ab":
        first, *others = [each for each in run.ledger.requests if each.tenant.name == name]
        assert first.cached_tokens == 0
        assert {each.cached_tokens for each in others} == {512}


def test_without_prefixes_no_figures_of_the_cache_are_reported():
    run = run_of(CHAT_TENANT)
    assert "prefix_cache" not in figures_of(run)
    assert not any(each.cached_tokens for each in run.ledger.requests)


def test_tickets_are_placed_where_their_prefix_is_cached():
    """No worker can cache all 60 texts: of six workers, a random one has the text in one sixth of the cases."""
    many = {**CHAT_TENANT, "prefix": {"tokens": 512, "texts": 60}, "arrivals": {"rate": 30.0}}
    run = run_of(many, duration=60.0, workers=[{"count": 6, "kv_blocks": 800, "slots": 8}])
    found = prefixes_of(run)
    assert found["hit_share"] > 0.5 * found["repeated_share"]


def test_a_small_cache_evicts():
    many = {**CHAT_TENANT, "prefix": {"tokens": 512, "texts": 60}}
    large, small = (run_of(many, workers=[{"kv_blocks": blocks, "slots": 8}]) for blocks in (7_500, 400))
    assert prefixes_of(small)["cached_tokens"] < 0.5 * prefixes_of(large)["cached_tokens"]


def test_a_lost_worker_loses_its_cache_and_answers_resume():
    run = run_of(
        {**CHAT_TENANT, "prefix": {"tokens": 512}, "output": {"tokens": 200}},
        workers=[{"count": 2}],
        losses=[{"worker": 0, "at": 5.0, "returns_after": 1.0}],
    )
    assert {each.transcript.outcome for each in run.ledger.requests} == {"ok"}
    assert all(each.transcript.tokens == each.output_tokens for each in run.ledger.requests)
    assert sum(each.cached_tokens == 0 for each in run.ledger.requests) >= 2, "a restarted worker has an empty cache"


def test_a_ticket_has_the_block_hashes_of_the_edge(tmp_path):
    conversation(tmp_path / "conversation.jsonl")
    (tmp_path / "world.toml").write_text(TRACE_SCENARIO, encoding="utf-8")
    simulation = Simulation(read_scenario(tmp_path / "world.toml"))
    enqueued = []
    simulation.mesh.enqueue = enqueued.append
    simulation.events.run(until=0.1)
    token_ids = SharedPrefix((0, 10_000), 512).token_ids(521, 0)
    names = block_hashes(token_ids, 16, salt_of("chat"))
    assert enqueued[0].prefix_hashes == b"".join(each.to_bytes(8, "little") for each in names)
    assert len(names) == sum(depth <= 521 // 16 for depth in PREFIX_DEPTHS)


def test_the_turns_of_a_recorded_conversation_hit_the_cache(tmp_path):
    conversation(tmp_path / "conversation.jsonl")
    (tmp_path / "world.toml").write_text(TRACE_SCENARIO, encoding="utf-8")
    figures = figures_of(Simulation(read_scenario(tmp_path / "world.toml")).run())
    assert figures["completed"] == 60
    assert figures["prefix_cache"]["hit_share"] > 0.3


def test_placement_by_prefix_does_not_depend_on_the_hash_seed(tmp_path):
    """More workers cache the prefix than a search examines, so the choice must not depend on the order of a set."""
    (tmp_path / "bursty.toml").write_text(BURSTY_SCENARIO, encoding="utf-8")

    def report(hash_seed):
        command = [sys.executable, "-m", "penstock.cli", "simulate", tmp_path / "bursty.toml", "--json"]
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    assert report("1") == report("2")
