"""Tickets that wait at other shards, and those that waiting tenants send later, in the predictions of a shard."""

import math
from dataclasses import replace

import pytest

from penstock.mesh.v1.queue_pb2 import PoolStats, VirtualTime
from penstock.proofs.simulated.fleet_cells import Cell, fleet_scenario
from penstock.queue.frames import head_message, pool_stats_of, remote_backlog_of
from penstock.queue.policies.factory import PolicyConfig
from penstock.queue.prediction.contention import TIME_CONSTANT_S, Contention
from penstock.queue.prediction.ttft_model import RemoteBacklog
from penstock.simulator.mesh.worker import MODEL
from penstock.simulator.simulation import Simulation
from queue_tickets import BATCH, INTERACTIVE, STANDARD, ShardDriver, ticket

COST = 90 + 2 * 10  # virtual tokens of a ticket of `queue_tickets`
RATE = 2 / COST  # two waiting tenants


def book_behind_others(*, waiting, rate=RATE, priority=STANDARD):
    """A shard whose workers serve 1,000 tokens/s, while tickets of 100 tokens wait at other shards."""
    shard = ShardDriver(policy=PolicyConfig(burst_tokens=0.0))
    shard.connect()
    forecast = shard.book.model_queues["m"].forecast
    forecast.service_rate.saturated = 1_000.0
    report(shard)
    elsewhere = VirtualTime(
        model="m",
        priority=priority,
        waiting=waiting,
        waiting_prompt_tokens=90 * waiting,
        waiting_tokens=100 * waiting,
        tickets_per_virtual_token=rate,
    )
    shard.book.on_virtual_times("s", [elsewhere])
    forecast.mean_output_tokens = 10.0
    return shard


def report(shard):
    stats = PoolStats(model="m", tokens_per_second=1_000.0, slots=4, running=4)
    shard.book.on_pool_stats("s", "m", pool_stats_of(stats, shard.now))


def wait_after(shard, seconds):
    shard.now += seconds
    report(shard)
    return wait_of(shard)


def wait_of(shard, **fields):
    return shard.book.model_queues.predict(ticket("new", tenant_id="own", **fields), shard.now).wait


def with_own_tickets(shard, count, **fields):
    for number in range(count):
        shard.enqueue(f"own/{number}", tenant_id="own", **fields)
    return shard


def test_a_ticket_waits_for_those_of_other_shards_that_are_dispatched_before_it():
    alone = with_own_tickets(book_behind_others(waiting=0, rate=0.0), 5)
    among_others = with_own_tickets(book_behind_others(waiting=40), 5)
    assert wait_of(alone) == pytest.approx(0.6)
    assert wait_of(among_others) == pytest.approx(0.6 + 1.0), "two other tenants take as many slots each"


def test_other_shards_are_expected_to_receive_more_tickets_of_the_tenants_that_wait():
    assert wait_of(with_own_tickets(book_behind_others(waiting=2), 5)) == pytest.approx(0.6 + 1.0)


@pytest.mark.parametrize(("priority", "wait"), [(INTERACTIVE, 0.6 + 4.0), (STANDARD, 0.6 + 1.0), (BATCH, 0.6)], ids=str)
def test_a_class_waits_for_all_tickets_of_higher_classes_elsewhere_and_for_none_of_lower_ones(priority, wait):
    assert wait_of(with_own_tickets(book_behind_others(waiting=40, priority=priority), 5)) == pytest.approx(wait)


def test_without_virtual_time_all_tickets_that_wait_elsewhere_go_first():
    assert wait_of(with_own_tickets(book_behind_others(waiting=7, rate=0.0), 5)) == pytest.approx(0.6 + 0.7)


def test_tickets_elsewhere_are_forgotten_when_their_scheduler_is_lost_or_reports_none():
    shard = with_own_tickets(book_behind_others(waiting=40), 5)
    shard.book.on_virtual_times("s", [VirtualTime(model="m", priority=STANDARD)])
    assert wait_of(shard) == pytest.approx(0.6)
    shard = with_own_tickets(book_behind_others(waiting=40), 5)
    shard.connect("t")
    shard.disconnect("s")
    assert shard.book.schedulers.remote_backlogs("m") == {}


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -0.1])
def test_an_invalid_rate_from_a_scheduler_counts_as_no_virtual_time(rate):
    frame = VirtualTime(model="m", waiting=3, waiting_prompt_tokens=4, waiting_tokens=5, tickets_per_virtual_token=rate)
    assert remote_backlog_of(frame) == RemoteBacklog(3, 4, 5, 0.0)


def test_a_head_tells_how_many_tickets_its_class_dispatches_per_virtual_token():
    shard = ShardDriver(policy=PolicyConfig(burst_tokens=0.0))
    shard.connect()
    shard.heads()
    for tenant, weight in ("a", 1.0), ("b", 1.0), ("c", 3.0):
        for number in range(4):
            shard.enqueue(f"{tenant}/{number}", tenant_id=tenant, weight=weight)
    shard.enqueue("low", priority=BATCH)
    head = head_message(shard.heads()[-1], shard.now)
    assert (head.waiting, head.class_waiting, head.waiting_prompt_tokens) == (13, 12, 13 * 90)
    assert head.tickets_per_virtual_token == pytest.approx((1 + 1 + 3) / COST), "by the weights of the tenants"
    shard.withdraw("low", *(f"{tenant}/{number}" for tenant in "abc" for number in range(4)))
    assert shard.book.model_queues["m"].policy.class_backlog(STANDARD) == (0, 0, 0.0)


def test_a_waiting_tenant_is_expected_to_send_more_tickets_than_wait_now():
    order = PolicyConfig(burst_tokens=0.0)()
    for number in range(10):
        order.push(ticket(f"deep/{number}", tenant_id="deep", arrival_number=number))
    order.push(ticket("shallow", tenant_id="shallow", arrival_number=10))
    position = order.position_of(ticket("new", tenant_id="deep"))
    assert position.tickets == pytest.approx(10 + 1), "the tickets that wait"
    assert position.later_tickets == pytest.approx(10 + 0.5 - 1), "the other tenant has as many turns"
    assert position.virtual_tokens == pytest.approx(10 * COST)


def test_a_tenant_that_pauses_is_expected_to_return_for_some_seconds():
    shard = book_behind_others(waiting=0, rate=0.0)
    for tenant in ("own", "other"):
        for number in range(5):
            shard.enqueue(f"{tenant}/{number}", tenant_id=tenant)
    while_both_wait = wait_after(shard, 10 * TIME_CONSTANT_S)
    shard.withdraw(*(f"other/{number}" for number in range(5)))
    assert wait_after(shard, 0.01) == pytest.approx(while_both_wait, rel=0.1), "the other has paused for 10 ms"
    assert wait_after(shard, 10 * TIME_CONSTANT_S) == pytest.approx(0.6, rel=0.02), "the other has left"


def test_contention_is_a_mean_over_time_and_not_over_predictions():
    contention = Contention()
    contention.record(4, 0.0)
    for _ in range(100):
        contention.record(1, 0.0)
    assert (contention.mean_tenants, contention.absent_share(1), contention.absent_share(8)) == (4.0, 3.0, 0.0)
    contention.record(1, TIME_CONSTANT_S)
    assert contention.mean_tenants == pytest.approx(1 + 3 / math.e)
    assert contention.absent_share(0) == 0.0


def test_a_single_tenant_contends_with_nobody():
    shard = book_behind_others(waiting=0, rate=0.0)
    for number in range(20):
        shard.enqueue(f"own/{number}", tenant_id="own", tokens=100 + 50 * number)
        wait_after(shard, 0.2)
    wait = wait_of(shard)
    assert shard.heads()[-1].backlog == shard.book.model_queues["m"].policy.class_backlog(STANDARD)
    assert wait_after(shard, 10 * TIME_CONSTANT_S) == pytest.approx(wait)


def test_the_predictions_of_several_shards_need_no_correction():
    """Each shard predicted as if it had all slots: waits were twice to four times as long as predicted."""
    world = fleet_scenario(Cell(4, shards=4, tenants=8), seed=1, load=10.0)
    world = replace(world, duration=12.0)
    run = Simulation(world).run()
    found = [shard.book.model_queues[MODEL].forecast for shard in run.mesh.shards.values()]
    corrections = [each.correction for each in found if each.mean_output_tokens]
    assert len(corrections) >= 3
    assert max(corrections) < 1.4, corrections
