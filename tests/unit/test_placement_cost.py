"""The cost of a placement: backlog by prompt size, prefixes that are being computed, rates of new workers, turnover."""

import pytest
from google.protobuf.duration_pb2 import Duration

from penstock.chassis.prefix_depths import PREFIX_DEPTHS
from penstock.mesh.v1.scheduler_pb2 import LoadReport, Profile
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.fleet import prefix_index
from penstock.scheduler.fleet.fleet import PLACED_PREFIXES_INTERVAL_S
from penstock.scheduler.fleet.placement import LowestTtft
from penstock.scheduler.fleet.pool import Pool
from penstock.scheduler.fleet.prefix_index import PLACED_DEPTHS_STRIDE, PrefixIndex
from penstock.scheduler.fleet.prompt_sizes import MAX_PROMPTS, PROMPTS_PER_UPDATE, PromptSizes
from penstock.scheduler.fleet.worker import DEFAULT_PREFILL_TOKENS_PER_S, Worker
from penstock.scheduler.leases import LeaseBook

BLOCK = 16
STEP = Duration(nanos=10_000_000)


def worker_of(name, kv_blocks=10_000):
    profile = Profile(model="m", slots=64, kv_blocks=kv_blocks, block_size=BLOCK, context_length=100_000)
    return Worker(name, name, f"{name}:1", profile, look_ahead=0)


def report_of(backlog=0, rate=10_000.0, **fields):
    return LoadReport(
        prefill_tokens_per_second=rate, prefill_backlog_tokens=backlog, decode_step_time=STEP, step_time=STEP, **fields
    )


def pool_of(**backlogs):
    """Return a pool of workers by name, each with its prefill backlog in tokens."""
    pool = Pool(LowestTtft())
    for name, backlog in backlogs.items():
        worker = worker_of(name)
        worker.on_load_report(report_of(backlog))
        pool.add(worker)
    return pool


def ticket_of(tokens, hashes=()):
    return Ticket(ticket_id="t", model="m", prompt_tokens=tokens, max_output_tokens=16, prefix_hashes=hashes)


def place(pool, ticket):
    placed = pool.place(ticket)
    return placed.worker.worker_id, placed.new_tokens


def sizes_of(*prompts):
    sizes = PromptSizes()
    for _ in range(PROMPTS_PER_UPDATE):
        for tokens in prompts:
            sizes.record(tokens)
    return sizes


def test_the_whole_backlog_counts_until_sizes_are_known():
    assert PromptSizes().delay_share(10) == 1.0


def test_a_short_prompt_neither_waits_for_nor_delays_most_of_a_long_backlog():
    sizes = sizes_of(100, 30_000)
    assert sizes.delay_share(100) < 0.02
    assert sizes.delay_share(30_000) > 0.8
    assert sizes.delay_share((1 << 32) - 1) == 1.0


def test_the_delay_share_grows_with_the_prompt():
    sizes = sizes_of(10, 300, 5_000, 70_000)
    shares = [sizes.delay_share(1 << power) for power in range(20)]
    assert shares == sorted(shares)
    assert all(0.0 <= share <= 1.0 for share in shares)


def test_sizes_follow_the_recent_prompts():
    sizes = sizes_of(30_000)
    for _ in range(8 * MAX_PROMPTS):
        sizes.record(100)
    assert sizes.delay_share(128) > 0.5


def test_prompts_without_tokens_to_compute_have_no_sizes():
    assert sizes_of(0).delay_share(0) == 1.0


def test_a_long_backlog_does_not_send_a_cached_prompt_away():
    cached = ticket_of(17 * BLOCK, range(1, 17))
    pools = [pool_of(busy=20_000, idle=0) for _ in range(2)]
    for pool in pools:
        pool.prefix_index.apply("busy", range(1, 17), (), is_snapshot=True)
    without_sizes, pool = pools
    for _ in range(PROMPTS_PER_UPDATE):
        pool.prompt_sizes.record(20_000)
    assert without_sizes.place(cached).worker.worker_id == "idle", "as if its first token came 2 s later"
    assert pool.place(cached).worker.worker_id == "busy"
    assert pool.place(ticket_of(20_000)).worker.worker_id == "idle"


def test_prompts_with_a_common_prefix_go_to_one_worker_before_it_is_reported():
    pool, hashes = pool_of(a=0, b=0, c=0), range(1, 17)
    first, computed = place(pool, ticket_of(1_000, hashes))
    assert computed == 1_000
    pool.add(worker_of("0"))  # a tie would go to it
    assert place(pool, ticket_of(1_000, hashes)) == (first, 1_000 - 16 * BLOCK)


@pytest.mark.parametrize("tokens", [500, 2_000, 16_000])
def test_the_answers_to_one_prompt_go_to_one_worker_once_sizes_are_known(tokens):
    pool = pool_of(a=0, b=0, c=0)
    for _ in range(PROMPTS_PER_UPDATE):
        pool.prompt_sizes.record(tokens)
    hashes = [depth for depth in PREFIX_DEPTHS if depth * BLOCK <= tokens]
    workers = set()
    for choice in range(8):
        ticket = ticket_of(tokens, hashes)
        placed = pool.place(ticket)
        placed.worker.promise(f"lease {choice}", placed.worker.blocks_for(ticket))
        placed.worker.add_unstarted_tokens(placed.new_tokens)
        workers.add(placed.worker.worker_id)
    assert len(workers) == 1


def test_an_expected_prefix_is_forgotten_after_two_periods():
    index = PrefixIndex()
    index.on_placed("w", range(8))
    index.expire_placed()
    assert index.expected_prefix(range(11)) == ("w", 8)
    index.expire_placed()
    assert index.expected_prefix(range(11)) == ("", 0)


def test_an_expected_prefix_is_never_longer_than_the_common_one():
    index, names = PrefixIndex(), list(range(len(PREFIX_DEPTHS)))
    index.on_placed("w", names)
    for count in range(1, len(names) + 1):
        worker, blocks = index.expected_prefix([*names[:count], *range(1_000, 1_064 - count)])
        assert blocks <= PREFIX_DEPTHS[count - 1]
        assert (worker == "w") == (count >= PLACED_DEPTHS_STRIDE)
    assert index.expected_prefix(names) == ("w", PREFIX_DEPTHS[-1])


def test_the_newest_prompt_names_the_worker_of_a_common_prefix():
    index = PrefixIndex()
    index.on_placed("a", range(12))
    index.on_placed("b", range(4))
    assert index.expected_prefix(range(4)) == ("b", 4)
    assert index.expected_prefix(range(12)) == ("a", 12)


def test_expected_prefixes_are_bounded(monkeypatch):
    monkeypatch.setattr(prefix_index, "MAX_PLACED_BLOCKS", 10)
    index = PrefixIndex()
    for number in range(100):
        index.on_placed("w", range(10 * number, 10 * number + 8))
    assert len(index._placed) + len(index._placed_before) <= 22
    assert index.expected_prefix(range(990, 998)) == ("w", 8)


def test_a_tick_of_the_scheduler_expires_expected_prefixes():
    dispatcher = Dispatcher(leases=LeaseBook(ttl=5.0, prefix="s"))
    dispatcher.fleet.add(worker_of("w"))
    index = dispatcher.fleet.pools["m"].prefix_index
    index.on_placed("w", range(4))
    for number in range(3):
        dispatcher.tick(number * 1.01 * PLACED_PREFIXES_INTERVAL_S)
    assert index.expected_prefix(range(4)) == ("", 0)


def test_a_worker_without_reports_is_assumed_as_fast_as_the_others():
    pool = pool_of(a=0)
    pool.add(worker_of("b"))
    pool.place(ticket_of(100))
    rates = {worker.worker_id: worker.prefill_tokens_per_s for worker in pool}
    assert rates == {"a": 10_000.0, "b": 10_000.0}


def test_workers_that_were_never_used_take_the_first_rates_of_another():
    pool = Pool(LowestTtft())
    workers = [worker_of(name) for name in "abc"]
    for worker in workers:
        pool.add(worker)
    pool.place(ticket_of(100))
    assert workers[1].prefill_tokens_per_s == DEFAULT_PREFILL_TOKENS_PER_S
    workers[0].on_load_report(report_of(backlog=500))
    assert pool.place(ticket_of(100)).worker.worker_id == "b"
    assert workers[2].prefill_tokens_per_s == 10_000.0


def test_a_step_with_a_long_prefill_does_not_count_as_load():
    """The backlog has the prompt, so that the mean duration of steps would count it twice."""
    pool = pool_of(a=0, b=0)
    workers = {worker.worker_id: worker for worker in pool}
    workers["a"].on_load_report(report_of())
    workers["a"].report.step_time.CopyFrom(Duration(nanos=90_000_000))
    workers["b"].promise("lease", 500)
    assert pool.place(ticket_of(100)).worker.worker_id == "a"


@pytest.mark.parametrize(("cached_blocks", "chosen"), [(0, "b"), (16, "a")])
def test_a_cache_with_a_higher_turnover_gets_fewer_new_prompts_but_keeps_its_conversations(cached_blocks, chosen):
    pool = pool_of(a=0, b=0)
    busy = next(worker for worker in pool if worker.worker_id == "a")
    busy.add_unstarted_tokens(busy.cache_tokens)
    busy.on_lease_started(busy.cache_tokens)
    busy.on_load_report(report_of())
    pool.prefix_index.apply("a", range(1, cached_blocks + 1), (), is_snapshot=True)
    assert pool.place(ticket_of(17 * BLOCK, range(1, 17))).worker.worker_id == chosen
