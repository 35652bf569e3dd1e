"""Tables of a shard for operators: depth by class and tenant, with a bounded number of rows."""

from dispatch_mesh import MODEL, START_UNIX_S, book_of, ticket_of
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease
from penstock.queue.accounting import ServedTicket
from penstock.queue.observability.snapshot import MAX_TENANT_ROWS, prediction_figures, tables
from penstock.queue.prediction.estimators import INITIAL_USABLE_SHARE
from penstock.queue.schedulers import Credit
from penstock.queue.ticket import from_frame


def book():
    found = book_of()
    found.on_edge_connected("edge")
    found.on_scheduler_connected("s", START_UNIX_S)
    found.on_catalog("s", [CatalogEntry(model=MODEL)], START_UNIX_S)
    return found


def enqueue(book, name, tenant, **fields):
    ticket = ticket_of(name, **fields)
    ticket.tenant_id = tenant
    book.enqueue(from_frame(ticket, "edge", START_UNIX_S - 1), START_UNIX_S)


def test_depth_is_counted_by_class_and_tenant_without_zero_rows():
    shard = book()
    enqueue(shard, "a", "acme", priority=1, tokens=10)
    enqueue(shard, "b", "acme", priority=1, tokens=20)
    enqueue(shard, "c", "acme", priority=3, tokens=40)
    of_acme = {"model": MODEL, "card_digest": "", "tenant_id": "acme", "running": 0}
    assert tables(shard)["depth"] == [
        {**of_acme, "class": "interactive", "waiting": 2, "waiting_tokens": 30},
        {**of_acme, "class": "batch", "waiting": 1, "waiting_tokens": 40},
    ]
    shard.withdraw("edge", ["a", "b", "c"])
    assert tables(shard)["depth"] == []
    assert shard.model_queues.totals_by_tenant == {}


def test_running_tickets_are_counted_for_their_tenant():
    shard = book()
    enqueue(shard, "a", "acme")
    shard.on_credit("s", MODEL, Credit(1), START_UNIX_S, return_unused=False)
    shard.on_place("s", Lease(lease_id="l", ticket_id="a", attempt=1), START_UNIX_S)
    row = {
        "model": MODEL,
        "card_digest": "",
        "class": "standard",
        "tenant_id": "acme",
        "waiting": 0,
        "waiting_tokens": 0,
        "running": 1,
    }
    assert tables(shard)["depth"] == [row]
    of_model = {"model": MODEL, "card_digest": "", "waiting": 0, "waiting_tokens": 0, "credit": 0, "leased": 1}
    assert tables(shard)["models"] == [of_model | {"running": 1}]
    shard.on_service_report([ServedTicket("a", 31, 1, has_ended=True, attempt=1)])
    assert tables(shard)["depth"] == []
    assert tables(shard)["models"] == [of_model | {"running": 0}]


def test_only_the_deepest_tenants_are_shown():
    shard = book()
    for number in range(MAX_TENANT_ROWS + 10):
        for each in range(1 + number % 2):
            enqueue(shard, f"{number}/{each}", f"tenant-{number}")
    rows = tables(shard)["depth"]
    assert len(rows) == MAX_TENANT_ROWS
    assert [row["waiting"] for row in rows] == [2] * 30 + [1] * 20


def test_predictions_are_shown_with_realised_waits():
    shard = book()
    enqueue(shard, "a", "acme")
    assert prediction_figures(shard.model_queues) == {}
    forecast = shard.model_queues[MODEL].forecast
    for realised in range(100, 200):
        forecast.record_wait(100.0, 100.0, float(realised))
    row = tables(shard)["predictions"][0]
    assert (row["model"], row["waits"], row["headroom"]) == (MODEL, 100, INITIAL_USABLE_SHARE)
    assert (row["waited_s_p50"], row["waited_s_p95"]) == (150.0, 195.0)
    assert (row["late_s_p5"], row["late_s_p50"], row["late_s_p95"]) == (5.0, 50.0, 95.0)
    assert prediction_figures(shard.model_queues) == {"wait_error_s_p50": 50.0, "wait_error_s_p95": 95.0}


def test_an_early_lease_has_negative_lateness():
    shard = book()
    enqueue(shard, "a", "acme")
    shard.model_queues[MODEL].forecast.record_wait(0.5, 0.5, 0.125)
    assert tables(shard)["predictions"][0]["late_s_p50"] == -0.375
    assert prediction_figures(shard.model_queues)["wait_error_s_p50"] == 0.375


def test_sheds_are_counted_by_class_and_reason():
    shard = book()
    enqueue(shard, "a", "acme", priority=1, time_left=1.0)
    enqueue(shard, "b", "acme", priority=3, time_left=1.0)
    assert tables(shard)["sheds"] == [
        {"class": "interactive", "reason": "DEADLINE", "tickets": 1},
        {"class": "batch", "reason": "DEADLINE", "tickets": 1},
    ]
