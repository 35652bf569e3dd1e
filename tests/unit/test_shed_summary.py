"""The log has one line of rejections per interval, with counts by reason, model and tenant."""

from penstock.chassis.errors import Overloaded
from penstock.queue.effects import Shed
from penstock.queue.observability.shed_summary import INTERVAL_S, MAX_TENANTS, ShedSummary
from queue_tickets import ticket


def shed(tenant="acme", reason="QUEUE_FULL"):
    return Shed("edge", "t", Overloaded("full", reason=reason), ticket("t", tenant_id=tenant))


def test_the_first_rejection_is_due_at_once_and_later_ones_after_the_interval():
    summary = ShedSummary()
    assert summary.pop_due(0.0) is None
    summary.record(shed())
    assert summary.pop_due(100.0)["tickets"] == 1
    summary.record(shed())
    summary.record(shed(reason="EVICTED"))
    assert summary.pop_due(100.0 + INTERVAL_S - 0.1) is None
    line = summary.pop_due(100.0 + INTERVAL_S)
    assert line["reasons"] == {"QUEUE_FULL": 1, "EVICTED": 1}
    assert summary.pop_due(1_000.0) is None, "nothing is counted twice"


def test_only_the_tenants_with_the_most_rejections_are_named():
    summary = ShedSummary()
    for number in range(MAX_TENANTS + 3):
        for _ in range(number + 1):
            summary.record(shed(f"t{number}"))
    line = summary.pop_due(0.0)
    assert list(line["tenants"]) == [f"t{number}" for number in range(MAX_TENANTS + 2, 2, -1)]
    assert line["other_tenants"] == 3


def test_a_rejection_without_a_ticket_counts_by_its_reason_alone():
    summary = ShedSummary()
    summary.record(Shed("edge", "t", Overloaded("suspect", reason="POISON_SUSPECTED")))
    line = summary.pop_due(0.0)
    assert (line["tickets"], line["models"], line["tenants"]) == (1, {}, {})
