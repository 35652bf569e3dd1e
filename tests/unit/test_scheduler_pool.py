"""A pool of workers: placement among some of them, and workers whose capacity changes."""

from penstock.mesh.v1.scheduler_pb2 import Profile
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.scheduler.fleet.placement import LowestTtft
from penstock.scheduler.fleet.pool import Pool
from penstock.scheduler.fleet.worker import Worker

TICKET = Ticket(prompt_tokens=64, max_output_tokens=16)


def profile(slots=2, kv_blocks=100):
    return Profile(slots=slots, kv_blocks=kv_blocks, block_size=16, context_length=10_000)


def pool_of(*names):
    pool = Pool(LowestTtft())
    workers = [Worker(name, name, name, profile(), look_ahead=0) for name in names]
    for each in workers:
        pool.add(each)
    return pool, *workers


def test_a_ticket_is_placed_among_the_workers_that_are_named():
    pool, _, b, _ = pool_of("a", "b", "c")
    assert [pool.place(TICKET, ["b", "gone"]).worker for _ in range(2)] == [b, b]
    b.promise("1", 5), b.promise("2", 5)
    assert pool.place(TICKET, ["b"]) is None
    assert pool.place(TICKET, []) is None


def test_a_prefix_counts_among_the_workers_that_are_named_alone():
    pool, a, b, c = pool_of("a", "b", "c")
    ticket = Ticket(prompt_tokens=640, max_output_tokens=16, prefix_hashes=range(1, 41))
    assert pool.place(ticket, ["b"]).worker is b
    assert pool.place(ticket).worker is b
    elsewhere = pool.place(ticket, ["a", "c"])
    assert elsewhere.worker in {a, c}
    assert elsewhere.new_tokens == 640


def test_workers_are_listed_by_load_also_if_they_are_full():
    pool, a, b, c = pool_of("a", "b", "c")
    a.promise("1", 5), a.promise("2", 5), b.promise("3", 5)
    assert list(pool.by_load()) == [c, b, a]


def test_a_worker_keeps_its_leases_when_its_capacity_changes():
    pool, a = pool_of("a")
    a.promise("1", 5)
    pool.apply_profile(a, profile(slots=5, kv_blocks=1_000))
    assert (pool.totals.slots, pool.totals.available_leases) == (5, 4)
    assert (a.free_blocks, pool.max_supported_tokens) == (995, 10_000)
    pool.apply_profile(a, profile(slots=1))
    assert pool.place(TICKET) is None
    a.release("1")
    assert pool.place(TICKET).worker is a
