"""Placement by cached prefixes: named depths, the balance of caches, and the measure against ideal caches."""

from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import simulator
from penstock.chassis.prefix_depths import DENSE_DEPTHS, DEPTHS_PER_DOUBLING, MAX_DEPTH, NAMED_DEPTHS, PREFIX_DEPTHS
from penstock.mesh.limits.bounds import PREFIX_HASHES
from penstock.scheduler.fleet.prefix_index import PrefixIndex
from penstock.simulator.report.figures import figures_of
from penstock.simulator.report.ideal_caches import CachedPrompt, clairvoyant_tokens, shared_lru_tokens
from penstock.simulator.scenario_file import read_scenario, scenario_of
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Regular
from penstock.simulator.traffic.demand import Fixed, OfferedRequest, TraceDemand
from penstock.simulator.traffic.tool_loops import ToolLoops

TRACE = Path(simulator.__file__).parent / "scenarios" / "conversation_trace.jsonl.gz"
CHAINS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=40)


def prompt(*pieces, own=0):
    return CachedPrompt(10 * len(pieces) + own, pieces, 10)


def test_depths_grow_by_an_eighth_at_most_and_fit_a_ticket():
    assert PREFIX_DEPTHS[:DENSE_DEPTHS] == tuple(range(1, DENSE_DEPTHS + 1))
    assert all(
        before < after <= before * (1 + 1 / DEPTHS_PER_DOUBLING) for before, after in pairwise(PREFIX_DEPTHS[8:])
    )
    assert len(PREFIX_DEPTHS) == PREFIX_HASHES
    assert MAX_DEPTH == 1_024
    assert set(PREFIX_DEPTHS) == NAMED_DEPTHS


def test_the_index_counts_the_blocks_up_to_the_deepest_named_one():
    index = PrefixIndex()
    hashes = list(range(1, len(PREFIX_DEPTHS) + 1))
    index.apply("w", hashes[:20], (), is_snapshot=True)
    assert index.cached_blocks("w", hashes) == PREFIX_DEPTHS[19] == 24
    index.apply("w", hashes, (), is_snapshot=True)
    assert index.cached_blocks("w", hashes) == MAX_DEPTH


def test_one_shared_cache_finds_what_is_recent_and_a_clairvoyant_one_what_returns():
    prompts = [prompt("a"), prompt("b"), prompt("c"), prompt("a")]
    assert shared_lru_tokens(prompts, 20) == 0
    assert shared_lru_tokens(prompts, 30) == 10
    assert clairvoyant_tokens(prompts, 10) == 10


def test_tokens_that_are_not_shared_take_room_and_are_never_found():
    prompts = [prompt("a", own=5), prompt("b", own=25), prompt("a")]
    assert shared_lru_tokens(prompts, 40) == 0
    assert shared_lru_tokens(prompts, 50) == 10


@given(chains=CHAINS, capacity=st.integers(1, 30))
def test_ideal_caches_are_ordered(chains, capacity):
    prompts = [prompt(*((family, depth) for depth in range(length))) for family, length in chains]
    repeated = shared_lru_tokens(prompts, 10**9)
    assert shared_lru_tokens(prompts, 10 * capacity) <= repeated
    assert clairvoyant_tokens(prompts, 10 * capacity) <= repeated
    assert clairvoyant_tokens(prompts, 10**9) == repeated


def conversations(**changes):
    """Two minutes of public conversations on twelve workers whose caches hold one minute of them."""
    worker = {
        "count": 12,
        "slots": 64,
        "kv_blocks": 4_000,
        "block_size": 64,
        "token_budget": 2_048,
        "step_time": {"base_ms": 6.0, "prefill_token_ms": 0.02, "decode_seq_ms": 0.05},
    }
    tenant = {"name": "chat", "trace": {"kind": "mooncake", "path": str(TRACE)}}
    return scenario_of({"duration": 118.0, "slo": {"ttft": 5.0}, "workers": [worker], "tenants": [tenant], **changes})


@pytest.fixture(scope="module")
def figures():
    return figures_of(Simulation(conversations()).run())


def test_workers_find_most_of_what_one_shared_cache_of_their_size_finds(figures):
    found = figures["prefix_cache"]
    assert found["hit_share"] >= 0.8 * found["shared_lru_share"] > 0
    assert found["shared_lru_share"] <= found["clairvoyant_share"] <= found["repeated_share"]


def test_every_request_of_the_conversations_is_in_time(figures):
    assert figures["goodput_share"] == 1.0


@pytest.mark.parametrize("resolution", [0.0, 3.0])
def test_all_workers_take_equal_parts_at_low_load(resolution):
    """Most requests are alone. Placement by load alone would leave the caches of some workers unused."""
    tenant = {"name": "chat", "trace": {"kind": "mooncake", "path": str(TRACE), "resolution": resolution}}
    run = Simulation(replace(conversations(tenants=[tenant]), duration=60.0)).run()
    prefilled = [life.totals.prefill_tokens for life in run.worker_lives]
    assert min(prefilled) > 0.5 * max(prefilled)


def test_recorded_times_are_spread_over_their_resolution_by_seed():
    recorded = [OfferedRequest(3.0 * (number // 4), 1 + number, 1) for number in range(40)]
    demand = TraceDemand(recorded, resolution=3.0)
    first, second = (list(demand.requests(seed, load=2.0)) for seed in "ab")
    assert first != second
    assert list(demand.requests("a", load=2.0)) == first
    for requests in (first, second):
        assert [each.at for each in requests] == sorted(each.at for each in requests)
        for each in requests:
            assert 0 <= 2 * each.at - recorded[each.prompt_tokens - 1].at < 3.0


def test_a_tool_loop_repeats_its_prompts_after_common_instructions():
    loops = ToolLoops(
        Regular(1.0),
        turns=Fixed(3),
        growth=Fixed(100),
        output_lengths=Fixed(5),
        pause=10.0,
        instruction_tokens=128,
        instruction_texts=1,
    )
    requests = list(islice(loops.requests("seed", load=1.0), 300))
    assert [each.at for each in requests] == sorted(each.at for each in requests)
    assert {each.prompt_tokens for each in requests} == {228, 328, 428}
    assert all(each.prefix.piece_ids[:2] == (0, 1) for each in requests)
    own = [each.prefix.piece_ids[2:] for each in requests]
    following = [pieces for each, pieces in zip(requests, own, strict=True) if each.prompt_tokens == 328]
    assert len(following) > 50
    assert all(any(pieces[: len(first)] == first for first in own if len(first) < len(pieces)) for pieces in following)


def test_the_scenario_of_agents_is_shipped():
    scenario = read_scenario(Path(simulator.__file__).parent / "scenarios" / "agents.toml")
    assert scenario.has_shared_prefixes
    assert scenario.places_by_prefix
