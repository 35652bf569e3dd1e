"""The census of a shard, which edges tell to operators: counted rarely, for one class and model."""

from penstock.queue import effects as out
from penstock.queue.census import INTERVAL_S, ClassCensus
from queue_tickets import only


def census_of(effects):
    return only(out.Queued, effects).census


def test_a_ticket_with_others_ahead_is_told_who_waits_and_runs(shard):
    shard.enqueue("runs", tenant_id="globex"), shard.credit(1), shard.place("runs")
    shard.now += INTERVAL_S
    assert census_of(shard.enqueue("first", tenant_id="globex")) is None  # nothing is ahead
    shard.enqueue("second", tenant_id="globex")
    shard.now += INTERVAL_S
    found = census_of(shard.enqueue("third", tenant_id="globex"))
    assert (found.tenant_id, found.tenant_tickets) == ("globex", 2)
    assert (found.class_running, found.running) == (1, 1)


def test_waiting_tenants_are_counted_once_in_an_interval(shard):
    shard.enqueue("a", tenant_id="globex")
    shard.now += INTERVAL_S
    assert census_of(shard.enqueue("b", tenant_id="globex")).tenant_tickets == 1
    assert census_of(shard.enqueue("c", tenant_id="globex")).tenant_tickets == 1  # of the same count
    shard.now += INTERVAL_S
    assert census_of(shard.enqueue("d", tenant_id="globex")).tenant_tickets == 3


def test_classes_and_models_are_counted_apart(shard):
    shard.enqueue("a", tenant_id="globex", priority=1), shard.enqueue("b", tenant_id="globex", model="other")
    shard.enqueue("c", tenant_id="acme")
    shard.now += INTERVAL_S
    assert census_of(shard.enqueue("d", tenant_id="acme")) == ClassCensus("acme", 1, 0, 0, 0)


def test_a_ticket_that_has_ended_runs_no_more(shard):
    shard.enqueue("a"), shard.credit(1), shard.place("a")
    assert shard.book.accounting.running_by_class == {("m", 2): 1}
    shard.book.accounting.revoke("a")
    assert shard.book.accounting.running_by_class == {}
