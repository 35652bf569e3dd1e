"""Probation of a tenant that sends ever new poison requests: the tenant is slowed down, and nobody else."""

from itertools import pairwise

from penstock.mesh.v1.ticket_pb2 import PoisonReport
from penstock.queue.accounting import ServedTicket
from penstock.queue.tenant_probation import (
    FIRST_SUSPENSION_S,
    FREE_CONFIRMED,
    MAX_TENANTS,
    TRIAL_RETRY_AFTER_S,
    WINDOW_S,
    TenantProbation,
)
from queue_tickets import ShardDriver, entry, leased, sheds, ticket

TEN = 10  # confirmed requests


def probation_after(confirmed, *, every=0.0):
    """Return the probation of the tenant `bad` and the time of its last confirmed request."""
    probation, now = TenantProbation(), 0.0
    for key in range(1, confirmed + 1):
        now = (key - 1) * every
        convict(probation, key, now)
    return probation, now


def convict(probation, key, now, tenant="bad"):
    """Report a request as confirmed, and find its ticket."""
    probation.on_reports({key: True}, now)
    return probation.on_tenant_found(key, tenant, now, is_confirmed=True)


def poison(key, tenant="bad"):
    return ticket(f"p{key}", fingerprint=key, tenant_id=tenant)


def is_idle(_):
    return False


def test_the_first_confirmed_requests_have_no_consequence():
    probation, now = probation_after(FREE_CONFIRMED)
    assert probation.rejection(poison(99), now, is_idle) is None


def test_each_further_confirmed_request_doubles_the_suspension():
    waits = []
    for confirmed in range(FREE_CONFIRMED + 1, TEN + 1):
        probation, now = probation_after(confirmed)
        error = probation.rejection(poison(99), now, is_idle)
        assert (error.reason, error.code.name) == ("TENANT_ON_PROBATION", "RESOURCE_EXHAUSTED")
        assert "retry in" in error.message
        waits.append(error.retry_after)
    assert waits[0] == FIRST_SUSPENSION_S
    assert all(after == min(2 * before, WINDOW_S) for before, after in pairwise(waits))
    assert waits[-1] == WINDOW_S


def test_after_the_suspension_requests_run_one_at_a_time():
    probation, now = probation_after(FREE_CONFIRMED + 1)
    now += FIRST_SUSPENSION_S
    assert probation.rejection(poison(98), now, is_idle) is None
    probation.on_admitted(poison(98))
    assert probation.rejection(poison(99), now, {"p98"}.__contains__).retry_after == TRIAL_RETRY_AFTER_S
    assert probation.rejection(poison(98), now, {"p98"}.__contains__) is None
    assert probation.rejection(poison(99), now, is_idle) is None


def test_probation_ends_with_the_window():
    probation, _ = probation_after(FREE_CONFIRMED + 1)
    probation.on_admitted(poison(98))
    assert probation.rejection(poison(99), WINDOW_S, {"p98"}.__contains__) is None


def test_a_request_is_counted_once_however_often_it_is_reported():
    probation = TenantProbation()
    for _ in range(TEN):
        convict(probation, 1, 0.0)
    assert probation.rejection(poison(99), 0.0, is_idle) is None


def test_a_request_that_has_left_the_shard_is_known_by_its_first_report():
    probation = TenantProbation()
    for key in range(1, TEN + 1):
        probation.on_reports({key: False}, 0.0)
        probation.on_tenant_found(key, "bad", 0.0, is_confirmed=False)
        probation.on_reports({key: True}, 60.0)
    assert probation.rejection(poison(99), 60.0, is_idle)


def test_a_ticket_that_was_admitted_before_is_not_rejected():
    probation, now = probation_after(TEN)
    assert probation.rejection(ticket("x", tenant_id="bad", is_readmitted=True), now, is_idle) is None
    assert probation.rejection(ticket("x", tenant_id="bad", attempt=2), now, is_idle) is None


def test_other_tenants_are_not_affected():
    probation, now = probation_after(TEN)
    assert probation.rejection(ticket("x", tenant_id="good"), now, is_idle) is None
    probation.on_admitted(ticket("x", tenant_id="good"))
    assert probation.rejection(ticket("y", tenant_id="good"), now, {"x"}.__contains__) is None


def test_the_engines_that_one_tenant_can_crash_are_bounded():
    """A tenant that sends a new poison request as soon as it may crashes few engines in an hour."""
    probation, now, confirmed = TenantProbation(), 0.0, 0
    while now < 3_600.0:
        error = probation.rejection(poison(confirmed + 1), now, is_idle)
        if error:
            now += error.retry_after
            continue
        confirmed += 1
        convict(probation, confirmed, now)
        now += 1.0
    assert TEN <= confirmed <= 5 * TEN


def test_the_tenants_that_are_kept_are_bounded():
    probation = TenantProbation()
    for key in range(1, MAX_TENANTS + 3):
        for each in range(FREE_CONFIRMED + 1):
            name = key * 10 + each
            convict(probation, name, 0.0, f"t{key}")
    rejected = [bool(probation.rejection(poison(1, f"t{key}"), 0.0, is_idle)) for key in range(1, MAX_TENANTS + 3)]
    assert rejected == [False] * 2 + [True] * MAX_TENANTS


def confirm(shard, *fingerprints):
    for is_confirmed in (False, True):
        reports = [PoisonReport(fingerprint=each, is_confirmed=is_confirmed) for each in fingerprints]
        effects = shard.record(shard.book.on_catalog("s", [entry()], shard.now, reports))
    return effects


def shard_with_bad_tenant():
    """A shard on which ten requests of `bad` were confirmed, with waiting tickets of `bad` and `good`."""
    shard = ShardDriver()
    shard.connect()
    for key in range(1, TEN + 1):
        shard.enqueue(f"p{key}", tenant_id="bad", fingerprint=key)
    for key in range(3):
        shard.enqueue(f"bad{key}", tenant_id="bad", fingerprint=100 + key)
        shard.enqueue(f"good{key}", tenant_id="good", fingerprint=200 + key)
    confirm(shard, *range(1, TEN + 1))
    return shard


def test_waiting_tickets_of_a_suspended_tenant_are_shed_and_those_of_others_are_served():
    shard = shard_with_bad_tenant()
    assert shard.credit(10) == ["good0", "good1", "good2"]
    shard.pass_time(0.2)
    poisonous = {f"p{key}": "ENGINE_CRASHED" for key in range(1, TEN + 1)}
    assert sheds(shard.effects) == poisonous | {f"bad{key}": "TENANT_ON_PROBATION" for key in range(3)}
    assert sheds(shard.enqueue("bad9", tenant_id="bad")) == {"bad9": "TENANT_ON_PROBATION"}
    assert sheds(shard.enqueue("good9", tenant_id="good")) == {}
    assert leased(shard.place("good0")) == ["lease"]


def test_the_next_ticket_of_the_tenant_waits_for_the_end_of_the_one_that_is_tried():
    shard = ShardDriver()
    shard.connect()
    for key in range(1, FREE_CONFIRMED + 2):
        shard.enqueue(f"p{key}", tenant_id="bad", fingerprint=key)
    confirm(shard, *range(1, FREE_CONFIRMED + 2))
    confirm(shard)  # no worker reports them any more
    shard.pass_time(FIRST_SUSPENSION_S)
    assert sheds(shard.enqueue("one", tenant_id="bad")) == {}
    assert sheds(shard.enqueue("two", tenant_id="bad")) == {"two": "TENANT_ON_PROBATION"}
    assert shard.credit(1) == ["one"]
    shard.place("one")
    assert sheds(shard.enqueue("two", tenant_id="bad")) == {"two": "TENANT_ON_PROBATION"}
    shard.book.on_service_report([ServedTicket("one", 90, 10, has_ended=True, attempt=1)])
    assert sheds(shard.enqueue("two", tenant_id="bad")) == {}
