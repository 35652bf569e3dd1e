"""Old objects, and tickets and leases, of which there are very many, are not walked by the garbage collector."""

import gc
import sys
import weakref

import pytest

from dispatch_mesh import profile_of, ticket_of
from penstock.chassis.garbage import (
    MAX_FROZEN_INTERVAL_S,
    MAX_SURVIVORS,
    MAX_YOUNG,
    MIN_FROZEN_INTERVAL_S,
    THRESHOLDS,
    OldObjects,
    untracked,
)
from penstock.mesh.v1.scheduler_pb2 import Profile, RunningLease
from penstock.queue.ticket import from_frame
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.leases import LeaseBook
from queue_tickets import ShardDriver
from scheduler_calls import progress, served

MANY = 2_000
FEW = MANY // 10  # tracked objects that may be added


def tracked_objects():
    gc.collect()
    return len(gc.get_objects())


def test_an_untracked_object_is_returned_and_freed_by_its_references():
    items = [untracked((number, [])) for number in range(3)]
    assert not any(gc.is_tracked(each) for each in items)
    assert untracked(items[0]) is items[0]


def test_waiting_and_running_tickets_add_no_tracked_objects():
    shard = ShardDriver(max_depth=MANY, max_tokens=10**9)
    shard.connect()
    before = tracked_objects()
    for number in range(MANY):
        ticket = from_frame(ticket_of(f"t{number}", model="m", time_left=60.0, fingerprint=number), "e", shard.now)
        shard.book.enqueue(ticket, shard.now)
    assert len(shard.book.tickets) == MANY
    assert tracked_objects() - before < FEW
    for name in shard.credit(MANY):
        shard.place(name)
    shard.effects.clear()
    assert len(shard.book.accounting) == len(shard.book.recent_leases) == MANY
    assert tracked_objects() - before < FEW


def test_running_leases_add_no_tracked_objects():
    dispatcher = Dispatcher(leases=LeaseBook(ttl=5.0, prefix="s"))
    dispatcher.on_queue_connected("q")
    profile: Profile = profile_of(slots=MANY, kv_blocks=MANY)
    profile.running.extend(
        RunningLease(lease_id=f"l{number}", kv_blocks=1, ticket_id=f"t{number}", attempt=1, queue_id="q")
        for number in range(MANY)
    )
    before = tracked_objects()
    dispatcher.on_worker_attached("w", "w", "w:1", profile)
    dispatcher.on_progress("w", progress(served("l0", 1, 1, number=1)))
    assert len(dispatcher.leases) == MANY
    assert tracked_objects() - before < FEW


def test_the_collector_does_not_visit_the_entries_of_running_leases():
    dispatcher = Dispatcher(leases=LeaseBook(ttl=5.0, prefix="s"))
    dispatcher.on_queue_connected("q")
    profile: Profile = profile_of(slots=2, kv_blocks=100)
    profile.running.append(RunningLease(lease_id="l0", kv_blocks=1, ticket_id="t0", attempt=1, queue_id="q"))
    dispatcher.on_worker_attached("w", "w", "w:1", profile)
    dispatcher.on_progress("w", progress(served("l0", 1, 1, number=1)))
    assert len(dispatcher.leases) == len(dispatcher.fleet["w"].numbered_leases) == 1
    assert not gc.is_tracked(dispatcher.leases.leases)
    assert not gc.is_tracked(dispatcher.fleet["w"].numbered_leases)
    dispatcher.on_offer("q", ticket_of("t1", model=dispatcher.fleet["w"].model), 0.0)
    assert len(dispatcher.leases) == 2
    assert not gc.is_tracked(dispatcher.leases.leases)


class Node:
    """An object in a reference cycle."""

    def __init__(self):
        self.itself = self


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    """A clock of `OldObjects`, which is installed in this process. Objects that exist before are frozen."""
    clock, thresholds = Clock(), gc.get_threshold()
    gc.collect()
    gc.freeze()
    old = OldObjects(clock)
    old.install()
    gc.disable()  # collections take place where the test asks for them
    yield clock
    gc.callbacks.remove(old.on_collection)
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    gc.enable()


def test_objects_that_survive_a_full_collection_are_not_walked_by_the_next_one(clock):
    kept = [[] for _ in range(2 * MAX_SURVIVORS)]
    gc.collect()
    assert not gc.get_objects(generation=2)
    gc.collect()
    assert len(gc.get_objects()) < MAX_SURVIVORS
    assert len(kept) == 2 * MAX_SURVIVORS


def test_very_many_young_objects_are_frozen_instead_of_walked(clock):
    kept = [[] for _ in range(2 * MAX_YOUNG)]
    gc.collect(0)
    assert not gc.get_objects(generation=1)  # where those that a collection has walked would be
    assert len(gc.get_objects(generation=0)) < MAX_YOUNG
    assert len(kept) == 2 * MAX_YOUNG


def test_few_young_objects_are_walked(clock):
    kept = [[] for _ in range(MAX_YOUNG // 4)]
    gc.collect(0)
    assert len(gc.get_objects(generation=1)) >= len(kept)


def test_few_survivors_stay_tracked(clock):
    frozen, kept = gc.get_freeze_count(), [[] for _ in range(MAX_SURVIVORS // 2)]
    gc.collect()
    assert gc.get_freeze_count() <= frozen
    assert len(gc.get_objects(generation=2)) >= len(kept)


def frozen_cycle():
    """Return a weak reference to an object of a cycle that was frozen and is garbage now."""
    node, kept = Node(), [[] for _ in range(2 * MAX_SURVIVORS)]
    found = weakref.ref(node)
    gc.collect()
    assert len(kept) > MAX_SURVIVORS
    return found


def test_frozen_garbage_is_collected_once_an_hour(clock):
    node = frozen_cycle()
    clock.now = MAX_FROZEN_INTERVAL_S - 1.0
    frozen_cycle()
    gc.collect()
    assert node() is not None
    clock.now = MAX_FROZEN_INTERVAL_S
    frozen_cycle()
    gc.collect()
    assert node() is None
    assert len(gc.get_objects()) < MAX_SURVIVORS  # the others are frozen again


def test_frozen_garbage_is_collected_sooner_if_the_process_has_grown(clock):
    node, grown = frozen_cycle(), [[str(10**9 + number)] for number in range(sys.getallocatedblocks() // 4)]
    clock.now = MIN_FROZEN_INTERVAL_S - 1.0
    frozen_cycle()
    gc.collect()
    assert node() is not None
    clock.now = MIN_FROZEN_INTERVAL_S
    frozen_cycle()
    gc.collect()
    assert node() is None
    assert grown


def test_the_collector_itself_frees_frozen_garbage_and_walks_few_objects_otherwise(clock):
    node = frozen_cycle()
    clock.now = MAX_FROZEN_INTERVAL_S
    gc.enable()
    kept = [[] for _ in range(8 * THRESHOLDS[0])]
    assert node() is None
    assert gc.get_threshold() == THRESHOLDS
    before = sum(each["collections"] for each in gc.get_stats()[1:])
    kept += [[] for _ in range(8 * THRESHOLDS[0])]
    assert sum(each["collections"] for each in gc.get_stats()[1:]) == before
    gc.disable()
    assert len(gc.get_objects(generation=1)) <= MAX_SURVIVORS
    assert len(kept) == 16 * THRESHOLDS[0]
