"""The tournament tree and the prefix index against naive versions, and placement over unequal workers."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dispatch_mesh import profile_of, ticket_of
from penstock.mesh.v1.scheduler_pb2 import LoadReport
from penstock.scheduler.fleet.placement import LowestTtft
from penstock.scheduler.fleet.pool import MAX_CANDIDATES, Pool
from penstock.scheduler.fleet.prefix_index import MIN_SWEEP_BLOCKS, PrefixIndex
from penstock.scheduler.fleet.tournament_tree import MAX_SEARCH_VISITS, TournamentTree
from penstock.scheduler.fleet.worker import Worker

NAMES = [f"w{number}" for number in range(9)]
puts = st.tuples(st.sampled_from(NAMES), st.integers(0, 4), st.integers(0, 4))
takes = st.sampled_from(NAMES)


@given(changes=st.lists(st.one_of(puts, takes), max_size=40), free_slots=st.integers(0, 4))
def test_a_search_finds_all_workers_with_capacity_least_load_first(changes, free_slots):
    ranking, known = TournamentTree(), {}
    for change in changes:
        if isinstance(change, tuple):
            name, load, has = change
            ranking.put(name, load, has)
            known[name] = (load, name, has)
        elif known.pop(change, None):
            ranking.remove(change)
    wanted = [name for load, name, has in sorted(known.values()) if has >= free_slots]
    assert list(ranking.search(free_slots)) == wanted
    assert ranking.max_free_tokens == max((has for _, _, has in known.values()), default=0)
    assert len(ranking) == len(known)


def test_a_bounded_search_ends_with_the_worker_with_most_tokens():
    ranking = TournamentTree()
    for number in range(4 * MAX_SEARCH_VISITS):
        ranking.put(f"low-{number:04}", 0.0, 10)
    ranking.put("roomy", 9.0, 11)
    found = list(ranking.search(5))
    assert len(found) < MAX_SEARCH_VISITS
    assert found[-1] == "roomy"


class Counted(list):
    """A list that counts its reads and writes."""

    touched = 0

    def __getitem__(self, place):
        self.touched += 1
        return super().__getitem__(place)

    def __setitem__(self, place, value):
        self.touched += 1
        super().__setitem__(place, value)


def test_a_change_and_a_search_touch_one_path_of_the_tree():
    ranking = TournamentTree()
    for number in range(1_000):
        ranking.put(f"w{number:04}", float(number % 97), 10)
    path = ranking._leaves.bit_length()
    ranking._load, ranking._tokens = Counted(ranking._load), Counted(ranking._tokens)
    ranking.put("w0500", 0.5, 9)
    assert ranking._load.touched + ranking._tokens.touched <= 8 * path
    ranking._load.touched = ranking._tokens.touched = 0
    assert next(ranking.search(10)) == "w0000"
    assert ranking._load.touched + ranking._tokens.touched <= 8 * path


@given(
    changes=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6), st.booleans()), max_size=20),
    lost=st.sets(st.sampled_from("abc")),
)
def test_the_prefix_index_matches_a_naive_one(changes, lost):
    """The cache of a worker always holds a chain from its beginning."""
    prompt, index, depths = list(range(100, 106)), PrefixIndex(), dict.fromkeys("abc", 0)
    for worker, depth, anew in changes:
        before, now = set(prompt[: depths[worker]]), set(prompt[:depth])
        if anew:
            index.apply(worker, now, (), is_snapshot=True)
        else:
            index.apply(worker, now - before, before - now, is_snapshot=False)
        depths[worker] = depth
    for worker in lost:
        index.remove_worker(worker)
        depths[worker] = 0
    deepest = max(depths.values())
    assert set(index.workers_with_longest_prefix(prompt)) == {
        worker for worker, depth in depths.items() if depth == deepest > 0
    }
    assert {worker: index.cached_blocks(worker, prompt) for worker in "abc"} == {
        w: min(d, 6) for w, d in depths.items()
    }
    assert len(index) == min(deepest, 6)


@given(
    changes=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([100, 200]), st.integers(0, 6)), max_size=30),
    max_entries=st.integers(1, 12),
)
def test_a_full_prefix_index_counts_fewer_blocks_and_never_more(changes, max_entries):
    index, depths = PrefixIndex(max_entries), dict.fromkeys(itertools.product("abc", [100, 200]), 0)
    for worker, prompt, depth in changes:
        before, now = (set(range(prompt, prompt + each)) for each in (depths[worker, prompt], depth))
        index.apply(worker, now - before, before - now, is_snapshot=False)
        depths[worker, prompt] = depth
        assert sum(map(len, index._held.values())) == index._entries <= max_entries
    for (worker, prompt), depth in depths.items():
        hashes = list(range(prompt, prompt + 6))
        assert index.cached_blocks(worker, hashes) <= depth
        found = index.workers_with_longest_prefix(hashes)
        assert all(depths[each, prompt] for each in found)
    for worker in "abc":
        index.remove_worker(worker)
    assert (len(index), index._entries) == (0, 0)


def test_blocks_that_tickets_name_are_kept_before_others():
    index = PrefixIndex(max_entries=4)
    index.apply("w", [1, 2], (), is_snapshot=False)
    index.apply("w", [11, 12], (), is_snapshot=False)
    assert index.workers_with_longest_prefix([1, 2]) == ("w",)
    index.apply("x", [1, 21], (), is_snapshot=False)
    assert index.cached_blocks("w", [1, 2]) == 2
    assert index.cached_blocks("w", [11, 12]) == 0
    assert index.evicted_entries == 2
    index.apply("x", [22, 23, 24], (), is_snapshot=False)
    assert index.cached_blocks("x", [22, 23, 24]) == 3
    assert index.cached_blocks("w", [1]) == 0, "no ticket has named it since"
    assert (len(index), index.evicted_entries) == (4, 5)


def test_blocks_that_come_and_go_do_not_accumulate():
    index = PrefixIndex()
    for number in range(10 * MIN_SWEEP_BLOCKS):
        index.apply("w", [number], [number - 5], is_snapshot=False)
        index.workers_with_longest_prefix([number])
    assert len(index) == 5
    assert len(index._eviction_order) <= MIN_SWEEP_BLOCKS + 1
    assert len(index._named) <= 5


def test_an_uncached_prompt_has_no_holders():
    assert not PrefixIndex().workers_with_longest_prefix([])
    assert not PrefixIndex().workers_with_longest_prefix([1, 2])
    assert PrefixIndex().cached_blocks("w", [1]) == 0


def pool_of(**workers):
    """Return a pool of workers by name, each with slots, KV blocks and prefill rate."""
    pool = Pool(LowestTtft())
    for name, (slots, kv_blocks, rate) in workers.items():
        worker = Worker(name, name, f"{name}:1", profile_of(slots=slots, kv_blocks=kv_blocks), look_ahead=0)
        worker.on_load_report(LoadReport(prefill_tokens_per_second=rate))
        pool.add(worker)
    return pool


def fill(pool, tickets, *, tokens=160, zone=""):
    """Place tickets that do not end, and return their number by worker."""
    counts = {}
    for number in range(tickets):
        ticket = ticket_of(f"t{number}", tokens=tokens, zone=zone)
        worker = pool.place(ticket).worker
        worker.promise(ticket.ticket_id, worker.blocks_for(ticket))
        worker.add_unstarted_tokens(ticket.prompt_tokens)
        counts[worker.key] = counts.get(worker.key, 0) + 1
    return counts


def test_equal_workers_get_equal_shares():
    assert fill(pool_of(a=(100, 1_000, 500.0), b=(100, 1_000, 500.0)), 40) == {"a": 20, "b": 20}


def test_a_prompt_counts_as_backlog_from_its_lease_to_the_report_that_includes_it():
    worker = Worker("w", "w", "w:1", profile_of(), look_ahead=0)
    worker.add_unstarted_tokens(500)
    worker.on_lease_started(500)
    assert worker.prefill_backlog_tokens == 500, "its last report was sent before that prompt arrived"
    worker.on_load_report(LoadReport(prefill_backlog_tokens=450))
    assert worker.prefill_backlog_tokens == 450


def test_the_worker_that_the_queue_expects_is_preferred_unless_another_is_much_faster():
    pool = pool_of(a=(100, 1_000, 5_000.0), b=(100, 1_000, 5_000.0))
    expecting = ticket_of("t", tokens=160)
    expecting.expected_worker = "b"
    assert pool.place(ticket_of("t", tokens=160)).worker.worker_id == "a"
    assert pool.place(expecting).worker.worker_id == "b"
    next(each for each in pool if each.worker_id == "b").add_unstarted_tokens(5_000)
    assert pool.place(expecting).worker.worker_id == "a", "its first token is a second earlier there"


def test_a_worker_that_prefills_twice_as_fast_gets_twice_as_many_tickets():
    counts = fill(pool_of(slow=(1_000, 100_000, 500.0), fast=(1_000, 100_000, 1_000.0)), 60)
    assert abs(counts["fast"] - 40) <= 2


def test_a_worker_with_a_larger_kv_pool_gets_more_tickets():
    counts = fill(pool_of(large=(100, 1_000, 1e9), small=(100, 250, 1e9)), 40)
    assert abs(counts["large"] - 32) <= 2


def test_a_ticket_finds_the_only_worker_that_can_take_it():
    pool = pool_of(**{f"full{number}": (1, 8, 500.0) for number in range(4 * MAX_CANDIDATES)}, roomy=(1, 64, 1.0))
    assert pool.place(ticket_of("large", tokens=500)).worker.key == "roomy"
    assert pool.place(ticket_of("too-large", tokens=64 * 16 + 1)) is None


def pool_over(zones, slots=100):
    """Return a pool of equal workers in these zones, by name."""
    pool = Pool(LowestTtft())
    for name, zone in zones.items():
        worker = Worker(name, name, f"{name}:1", profile_of(slots=slots, kv_blocks=10_000), look_ahead=0, zone=zone)
        worker.on_load_report(LoadReport(prefill_tokens_per_second=1e9))
        pool.add(worker)
    return pool


def test_among_similar_workers_one_in_the_zone_of_the_edge_is_chosen():
    pool = pool_over({f"a{number:02}": "far" for number in range(4 * MAX_CANDIDATES)} | {"z": "near"})
    assert pool.place(ticket_of("t", zone="near")).worker.key == "z"
    assert pool.place(ticket_of("t", zone="far")).worker.key == "a00"
    assert pool.place(ticket_of("t", zone="elsewhere")).worker.key == "a00"
    assert pool.place(ticket_of("t")).worker.key == "a00"


def test_no_worker_is_overloaded_because_of_its_zone():
    counts = fill(pool_over({"near": "x", "far": "y", "somewhere": ""}), 90, zone="x")
    assert max(counts.values()) - min(counts.values()) <= 2
    assert counts["near"] >= counts["far"]


def test_a_zone_is_forgotten_with_its_last_worker():
    pool = pool_over({"a": "x", "b": "y", "c": "y"})
    workers = {worker.key: worker for worker in pool}
    pool.remove(workers["c"])
    assert pool.place(ticket_of("t", zone="y")).worker.key == "b"
    pool.remove(workers["b"])
    assert pool.place(ticket_of("t", zone="y")).worker.key == "a"
    pool.remove(workers["a"])
    assert pool.place(ticket_of("t", zone="y")) is None


def test_avoided_workers_do_not_hide_the_others():
    names = [f"w{number}" for number in range(4 * MAX_CANDIDATES)]
    pool = pool_of(**dict.fromkeys(names, (1, 8, 500.0)), slow=(1, 8, 1.0))
    assert pool.place(ticket_of("t", avoid=names)).worker.key == "slow"
