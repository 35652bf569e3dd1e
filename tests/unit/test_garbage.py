"""Tickets and leases, of which there are very many, are not walked by the garbage collector."""

import gc

from dispatch_mesh import profile_of, ticket_of
from penstock.chassis.garbage import untracked
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
