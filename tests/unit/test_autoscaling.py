"""The demand for workers: what a shard reports, what schedulers add up, and what KEDA makes of it."""

import pytest

from dispatch_mesh import book_of, demand_of
from penstock.chassis.errors import Unavailable
from penstock.mesh.v1.queue_pb2 import Demand, HeldModel, ModelDemand
from penstock.queue.autoscaling.demand import (
    BATCH_WORKERS,
    CATCH_UP_S,
    MAX_FULLNESS,
    MAX_PREFILL_SHARE,
    ShardWork,
    TicketSize,
)
from penstock.queue.autoscaling.demand import (
    ModelDemand as QueueDemand,
)
from penstock.queue.autoscaling.shard_demand import HELD_TTL_S
from penstock.queue.prediction.pool_stats import PoolStats
from penstock.scheduler.autoscaling.fleet_demand import MAX_DEMAND_AGE_S, FleetDemand
from penstock.simulator.autoscaling.clairvoyant import (
    MAX_UTILISATION,
    PlannedWorker,
    WorkItem,
    clairvoyant_plan,
    needed_workers,
    worker_seconds,
)
from penstock.simulator.autoscaling.keda import KedaController, KedaSettings
from penstock.v1.inference_pb2 import PRIORITY_BATCH
from queue_tickets import ticket

NOW = 1_000.0
NO_WORK = ShardWork(0, 0, 0, 0, 0, 0)
STATS = PoolStats(
    NOW,
    slots=20,
    workers=2,
    leased_tokens=6_000,
    free_tokens=14_000,
    seconds_per_prefill_token=1e-3,
    decode_step_time=0.05,
)


def known_demand():
    demand = QueueDemand()
    demand.record_pool_stats([STATS])
    return demand


# The demand of a model at a shard.


def test_any_work_needs_one_worker_while_the_size_of_a_worker_is_unknown():
    demand = QueueDemand()
    assert demand.workers_needed(NO_WORK._replace(held=500), TicketSize(), NOW).workers == 1
    assert demand.workers_needed(NO_WORK, TicketSize(), NOW).workers == 0


def test_running_tickets_need_their_slots_and_tokens():
    work = NO_WORK._replace(running=17, running_tokens=17 * 2_000)
    needed = known_demand().workers_needed(work, TicketSize(), NOW)
    assert needed.by_slots == pytest.approx(17 / 10 / MAX_FULLNESS)
    assert needed.by_tokens == pytest.approx(34_000 / 10_000 / MAX_FULLNESS)
    assert needed.workers == needed.by_tokens


def test_waiting_tickets_are_caught_up_with_and_need_no_slot_each():
    """100 tickets of 6 s each in 120 s need 5 slots, not 100."""
    needed = known_demand().workers_needed(NO_WORK._replace(waiting=100), TicketSize(1_000, 100), NOW)
    assert needed.by_slots == pytest.approx(100 * (100 * 0.05 + 1.0) / CATCH_UP_S / 10 / MAX_FULLNESS)


def test_arriving_prompts_need_time():
    demand = known_demand()
    for second in range(600):
        demand.arrivals.record(3_000, NOW + second)
    needed = demand.workers_needed(NO_WORK._replace(running=1), TicketSize(), NOW + 600)
    assert needed.by_prefill == pytest.approx(3_000 * 1e-3 / MAX_PREFILL_SHARE, rel=0.03)


def test_requests_that_were_held_do_not_arrive_a_second_time_when_they_are_enqueued():
    """300 requests that arrived over 60 s and are enqueued at once count by the time of their arrival."""
    at_once, over_time = known_demand(), known_demand()
    for number in range(300):
        over_time.arrivals.record(1_000, NOW + number / 5)
    for number in reversed(range(300)):
        at_once.arrivals.record(1_000, NOW + number / 5)
    rates = over_time.arrivals.per_second(NOW + 60)
    assert at_once.arrivals.per_second(NOW + 60) == pytest.approx(rates)
    assert rates[0] < 5


def test_held_requests_count_with_the_mean_size_of_tickets_once_workers_are_known():
    needed = known_demand().workers_needed(NO_WORK._replace(held=240), TicketSize(1_000, 200), NOW)
    assert needed.by_prefill == pytest.approx(240 * 1_000 / CATCH_UP_S * 1e-3)


def test_the_size_of_a_worker_outlives_the_last_one():
    demand = known_demand()
    size = demand.worker
    demand.record_pool_stats([PoolStats(NOW + 1)])
    demand.record_pool_stats([])
    assert demand.worker == size


def test_batch_work_needs_the_first_worker_and_no_further_one():
    batch = NO_WORK._replace(batch=10_000)
    assert known_demand().workers_needed(batch, TicketSize(1_000, 100), NOW).workers == BATCH_WORKERS
    assert QueueDemand().workers_needed(batch, TicketSize(), NOW).workers == BATCH_WORKERS
    others = NO_WORK._replace(running=17, running_tokens=17 * 100)
    alone = known_demand().workers_needed(others, TicketSize(), NOW)
    assert known_demand().workers_needed(others._replace(batch=10_000), TicketSize(), NOW) == alone


# The report of a shard.


def test_a_shard_reports_waiting_tickets_by_the_name_of_their_model():
    book = book_of(warm_up=1e9)
    book.on_edge_connected("edge")
    book.enqueue(ticket("t", model="m@v1"), NOW)
    assert [each.model for each in demand_of(book).report(NOW).models] == ["m"]


def test_a_shard_asks_for_no_worker_for_tickets_of_class_batch_beside_the_first():
    book = book_of(warm_up=1e9)
    book.on_edge_connected("edge")
    demand = demand_of(book)
    for number in range(50):
        book.enqueue(ticket(f"b{number}", model="m@v1", priority=PRIORITY_BATCH), NOW)
    [batch_only] = demand.report(NOW).models
    assert (batch_only.by_slots, batch_only.by_tokens, batch_only.by_prefill) == (BATCH_WORKERS, 0, 0)
    book.enqueue(ticket("i", model="m@v1"), NOW)
    [with_others] = demand.report(NOW).models
    assert with_others.by_slots == 1.0  # the size of a worker is unknown


def test_a_shard_reports_held_requests_until_they_are_not_confirmed():
    demand = demand_of(book_of())
    assert demand.on_held_requests("edge", [HeldModel(model="m", requests=3)], NOW)
    assert not demand.on_held_requests("edge", [HeldModel(model="m", requests=4)], NOW)
    assert [each.model for each in demand.report(NOW + HELD_TTL_S).models] == ["m"]
    assert not demand.report(NOW + HELD_TTL_S + 0.1).models


def test_requests_of_a_lost_edge_are_held_no_more():
    demand = demand_of(book_of())
    demand.on_held_requests("edge", [HeldModel(model="m", requests=3)], NOW)
    demand.on_edge_disconnected("edge")
    assert not demand.report(NOW).models


def test_a_shard_that_has_started_reports_nothing_until_edges_have_sent_their_tickets():
    book = book_of()
    demand = type(demand_of(book))(book.model_queues, book.accounting, complete_at=NOW + 5)
    assert demand.report(NOW + 4.9) is None
    assert demand.report(NOW + 5) == Demand()


# The sum over shards.


def report(**workers):
    return Demand(
        models=[ModelDemand(model=name, by_slots=each[0], by_prefill=each[1]) for name, each in workers.items()]
    )


def fleet(*addresses):
    found = FleetDemand()
    for address in addresses:
        found.on_shard_added(address)
    return found


def test_the_largest_sum_over_the_shards_is_needed():
    demand = fleet("a", "b")
    demand.on_demand("a", report(m=(2.0, 0.5)), NOW)
    demand.on_demand("b", report(m=(0.25, 1.0)), NOW)
    assert demand.workers("m", NOW) == 2.25
    assert demand.workers("other", NOW) == 0


def test_every_scheduler_returns_the_same_number_in_any_order_of_reports():
    reports = {"a": report(m=(2.0, 0.5)), "b": report(m=(0.25, 1.0)), "c": report(m=(0.5, 4.0))}
    one, other = fleet(*reports), fleet(*reversed(reports))
    for address, each in reports.items():
        one.on_demand(address, each, NOW)
    for address, each in reversed(reports.items()):
        other.on_demand(address, each, NOW + 0.5)
    assert one.workers("m", NOW + 1) == other.workers("m", NOW + 1) == 5.5


@pytest.mark.parametrize("silence", ["never reported", "lost", "silent", "no shard"])
def test_an_unknown_demand_is_an_error_and_never_0(silence):
    demand = fleet() if silence == "no shard" else fleet("a", "b")
    if silence != "no shard":
        demand.on_demand("a", report(m=(1.0, 0.0)), NOW)
    if silence in ("lost", "silent"):
        demand.on_demand("b", report(), NOW)
        assert demand.workers("m", NOW) == 1
    if silence == "lost":
        demand.on_shard_lost("b")
    at = NOW + MAX_DEMAND_AGE_S + 0.1 if silence == "silent" else NOW
    with pytest.raises(Unavailable) as raised:
        demand.workers("m", at)
    assert raised.value.reason == "DEMAND_UNKNOWN"


def test_a_shard_that_is_removed_is_not_waited_for():
    demand = fleet("a", "b")
    demand.on_demand("a", report(m=(1.0, 0.0)), NOW)
    demand.on_shard_removed("b")
    assert demand.workers("m", NOW) == 1


# KEDA and the HPA.


def controller(**settings):
    return KedaController(KedaSettings(**settings))


def test_keda_starts_the_first_replica_and_the_hpa_the_others():
    keda = controller()
    assert keda.on_metric(5.0, 0.0) == 0, "the HPA is off at 0"
    assert keda.on_activity(0.0, is_active=True) == 1
    assert keda.on_metric(4.2, 15.0) == 5


def test_the_hpa_ignores_a_tenth():
    keda = controller()
    keda.on_activity(0.0, is_active=True)
    assert keda.on_metric(10.0, 15.0) == 10
    assert keda.on_metric(10.9, 30.0) == 10
    assert keda.on_metric(11.1, 45.0) == 12


def test_the_hpa_keeps_the_highest_number_of_the_window_on_the_way_down():
    keda = controller(scale_down_window=60.0)
    keda.on_activity(0.0, is_active=True)
    assert [keda.on_metric(each, 15.0 * step) for step, each in enumerate((8, 4, 6, 4, 4, 4, 4), 1)] == [
        8,
        8,
        8,
        8,
        6,
        6,
        4,
    ]


def test_keda_stops_the_last_replica_after_the_cooldown():
    keda = controller(cooldown_period=100.0)
    keda.on_activity(0.0, is_active=True)
    assert keda.on_activity(99.0, is_active=False) == 1
    assert keda.on_activity(100.0, is_active=False) == 0


def test_an_error_keeps_the_replicas():
    keda = controller()
    keda.on_activity(0.0, is_active=True)
    keda.on_metric(7.0, 15.0)
    assert keda.on_error() == 7
    assert keda.errors == 1


# The clairvoyant.


def test_the_clairvoyant_needs_workers_for_the_mean_of_a_minute():
    steady = [WorkItem(second / 2, 0.9 * MAX_UTILISATION) for second in range(600)]
    assert set(needed_workers(steady)) == {2}


def test_the_clairvoyant_loads_before_the_work_and_keeps_a_worker_through_a_short_pause():
    work = [WorkItem(float(second), 0.1) for second in (*range(300), *range(360, 600), *range(1_200, 1_300))]
    plan = clairvoyant_plan(work, load_time=90.0)
    assert [each.started_at + 90.0 <= begin for each, begin in zip(plan, (0.0, 1_200.0), strict=True)] == [True, True]
    assert plan[0].stopped_at >= 600
    assert worker_seconds([PlannedWorker(-90.0, 10.0), PlannedWorker(5.0, 6.0)]) == 101
