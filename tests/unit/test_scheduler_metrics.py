"""Metrics of a scheduler: the capacity of its workers by model, over all versions of it."""

from penstock.mesh.v1.scheduler_pb2 import Profile, RunningLease
from penstock.scheduler import series
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.leases import LeaseBook
from penstock.scheduler.metrics import observations


def profile(digest, running=()):
    capacity = {"slots": 2, "kv_blocks": 64, "block_size": 16, "context_length": 4_096}
    return Profile(model="m", card_digest=digest, running=running, **capacity)


def observed(dispatcher):
    return {(each.series, *each.labels): each.value for each in observations(dispatcher)}


def test_versions_of_a_model_are_added_up():
    dispatcher = Dispatcher(leases=LeaseBook(ttl=5.0, prefix="s"))
    dispatcher.on_worker_attached("w1/1", "w1", "w1:1", profile("old"))
    brought = RunningLease(lease_id="l", ticket_id="t", attempt=1, queue_id="q", kv_blocks=4)
    dispatcher.on_worker_attached("w2/1", "w2", "w2:1", profile("new", [brought]))
    found = observed(dispatcher)
    assert found[series.WORKERS, "m"] == 2
    assert (found[series.SLOTS, "m"], found[series.AVAILABLE_LEASES, "m"]) == (4, 5)
    assert (found[series.LEASES, "m"], found[series.KV_PROMISED, "m"], found[series.KV_TOTAL, "m"]) == (1, 4, 128)


def test_a_model_without_workers_has_no_capacity():
    dispatcher = Dispatcher(leases=LeaseBook(ttl=5.0, prefix="s"))
    dispatcher.on_worker_attached("w1/1", "w1", "w1:1", profile("d"))
    dispatcher.on_worker_lost("w1/1")
    assert not [key for key in observed(dispatcher) if key[0] is series.WORKERS]
