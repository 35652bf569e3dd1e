"""Until when a ticket that got a lease is charged as running, and for what."""

from dataclasses import replace

import pytest

from penstock.queue.accounting import MAX_UNREPORTED_STEPS, REPORT_TIMEOUT_S, ServedTicket
from penstock.queue.policies.cost import cost_of, running_cost
from queue_tickets import ShardDriver, ticket


@pytest.fixture
def shard():
    """One ticket got a lease and was served a part of its answer."""
    shard = ShardDriver()
    shard.connect()
    shard.enqueue("a", tokens=200)
    shard.credit(1)
    shard.pass_time(0.1)
    shard.place("a")
    return shard


def test_a_ticket_without_reports_ends_with_its_reported_service(shard):
    shard.book.on_service_report([ServedTicket("a", 90, 5, has_ended=False, attempt=1)])
    shard.pass_time(REPORT_TIMEOUT_S - 1)
    assert len(shard.book.accounting) == 1
    shard.pass_time(2)
    assert len(shard.book.accounting) == 0


def test_a_reported_ticket_does_not_expire(shard):
    for _ in range(4):
        shard.pass_time(REPORT_TIMEOUT_S / 2)
        shard.book.on_service_report([ServedTicket("a", 90, 5, has_ended=False, attempt=1)])
    assert len(shard.book.accounting) == 1


def test_an_expired_ticket_runs_again_after_a_new_report(shard):
    shard.pass_time(REPORT_TIMEOUT_S + 1)
    shard.book.on_service_report([ServedTicket("a", 90, 5, has_ended=False, attempt=1)])
    assert len(shard.book.accounting) == 1
    shard.book.on_service_report([ServedTicket("a", 90, 10, has_ended=True, attempt=1)])
    assert len(shard.book.accounting) == 0


def decoding(name, **fields):
    """A shard with a ticket that asks for 200 tokens and had 40 by its worker's 1,000th step."""
    shard = ShardDriver()
    shard.connect()
    long = replace(ticket(name, **fields), max_output_tokens=200)
    shard.record(shard.book.enqueue(long, shard.now))
    shard.credit(1)
    shard.place(name)
    shard.book.on_service_report([ServedTicket(name, 90, 40, has_ended=False, attempt=1, worker_steps=1_000)])
    return shard, long


def test_a_decoding_ticket_is_charged_one_token_per_step_of_its_worker():
    shard, long = decoding("a")
    shard.book.on_service_report([], {"another": 1_030})
    assert long.charged_cost == running_cost(long, 40)
    shard.book.on_service_report([], {"w": 1_030})
    assert long.charged_cost == running_cost(long, 70) > running_cost(long, 40)


def test_a_ticket_that_waits_in_an_engine_is_charged_few_steps_and_corrected_later():
    shard, long = decoding("a")
    shard.book.on_service_report([], {"w": 9_999})
    assert long.charged_cost == running_cost(long, 40 + MAX_UNREPORTED_STEPS)
    shard.book.on_service_report([ServedTicket("a", 90, 41, has_ended=False, attempt=1, worker_steps=10_000)])
    assert long.charged_cost == running_cost(long, 41)


def test_a_ticket_without_a_token_or_after_its_end_is_charged_no_step(shard):
    [running] = shard.book.accounting
    before = running.charged_cost
    shard.book.on_service_report(
        [ServedTicket("a", 50, 0, has_ended=False, attempt=1, worker_steps=1_000)], {"w": 1_030}
    )
    assert running.charged_cost == before
    shard.book.on_service_report(
        [ServedTicket("a", 90, 1, has_ended=True, attempt=1, worker_steps=1_031)], {"w": 1_060}
    )
    assert running.charged_cost == cost_of(running, 90, 1)
