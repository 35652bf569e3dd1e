"""Accounting of leased tickets: the time for which they count as running, and the charges of their tenants."""

from dataclasses import replace

import pytest

from penstock.queue.accounting import MAX_UNREPORTED_STEPS, REPORT_TIMEOUT_S, OutputProgress, ServedTicket
from penstock.queue.policies.cost import cost_of, running_cost
from queue_tickets import STANDARD, ShardDriver, leased, ticket


@pytest.fixture
def shard():
    """A shard with one leased ticket that has part of its answer."""
    shard = connected_shard()
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
    """A shard with a ticket of at most 200 output tokens that had 40 at step 1,000 of its worker."""
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


def connected_shard():
    shard = ShardDriver()
    shard.connect()
    return shard


def run_one(shard, name, **fields):
    shard.enqueue(name, enqueued=shard.now, **fields)
    assert shard.credit(1) == [name]
    assert leased(shard.place(name)) == ["lease"]


def counter(shard, tenant="acme"):
    return shard.book.model_queues["m"].policy[STANDARD].tenant_queue.counter(tenant)


def served(shard, name, prompt=0, output=0, *, ended=False, attempt=1):
    shard.book.on_service_report([ServedTicket(name, prompt, output, ended, attempt)])


def test_a_tenant_is_charged_for_its_service_at_the_end():
    shard = connected_shard()
    run_one(shard, "a")
    assert counter(shard) == 90 + 2 * 10
    served(shard, "a", prompt=30, output=5)
    assert counter(shard) == 90 + 2 * 10, "a few tokens are charged in advance"
    served(shard, "a", prompt=30, output=5, ended=True)
    assert counter(shard) == 30 + 2 * 5
    assert len(shard.book.accounting) == 0


def test_an_end_that_is_revoked_is_charged_once():
    shard = connected_shard()
    run_one(shard, "a")
    served(shard, "a", prompt=90, output=3, ended=True)
    assert counter(shard) == 90 + 2 * 3
    served(shard, "a", prompt=90, output=4)
    assert (counter(shard), len(shard.book.accounting)) == (90 + 2 * 10, 1)
    served(shard, "a", prompt=90, output=8, ended=True)
    assert (counter(shard), len(shard.book.accounting)) == (90 + 2 * 8, 0)


def test_a_withdrawn_lease_costs_nothing():
    shard = connected_shard()
    run_one(shard, "a")
    shard.withdraw("a")
    assert counter(shard) == 0
    served(shard, "a", ended=True)
    assert counter(shard) == 0


def test_an_expired_lease_costs_nothing():
    shard = connected_shard()
    run_one(shard, "a")
    served(shard, "a", ended=True)
    assert counter(shard) == 0


def test_the_end_of_an_older_attempt_does_not_end_a_newer_one():
    shard = connected_shard()
    run_one(shard, "a")
    served(shard, "a", prompt=90, output=4, ended=True)
    run_one(shard, "a", attempt=2)
    served(shard, "a", ended=True, attempt=1)
    assert len(shard.book.accounting) == 1
    assert counter(shard) == 90 + 2 * 4 + 2 * 10, "the prompt of a resumed ticket is free"


def test_service_of_unknown_tickets_is_ignored():
    shard = connected_shard()
    served(shard, "unknown", prompt=5, output=5, ended=True)
    assert counter(shard) == 0


def numbered(shard, name="a", scheduler="s", number=5):
    """Report a ticket that runs in full, with its number at a scheduler."""
    run_one(shard, name)
    report = ServedTicket(name, 90, 1, has_ended=False, attempt=1, worker_steps=10, number=number)
    shard.book.on_service_report([report], scheduler=scheduler)


def report_output(shard, output_tokens, scheduler="s", number=5, steps=0):
    shard.book.on_service_report([], progress=[OutputProgress([number], [output_tokens], steps)], scheduler=scheduler)


def test_output_that_is_reported_by_number_is_charged():
    shard = connected_shard()
    numbered(shard)
    report_output(shard, 8, scheduler="another")
    report_output(shard, 8, number=6)
    served(shard, "a", prompt=90, ended=True)
    assert counter(shard) == 90 + 2 * 1, "the number of another scheduler or ticket changes nothing"
    run_one(shard, "b")
    served(shard, "b", prompt=90)
    numbered(shard, "c", number=7)
    report_output(shard, 9, number=7)
    served(shard, "c", prompt=90, ended=True)
    assert counter(shard) == 90 + 2 * 1 + (90 + 2 * 10) + (90 + 2 * 9)


def test_steps_of_a_report_by_number_count_for_the_tokens_since():
    shard, long = decoding("a")
    named = ServedTicket("a", 90, 40, has_ended=False, attempt=1, worker_steps=1_000, number=5)
    shard.book.on_service_report([named], scheduler="s")
    report_output(shard, 60, steps=1_020)
    shard.book.on_service_report([], {"w": 1_030})
    assert long.charged_cost == running_cost(long, 70)


def test_an_expired_ticket_runs_again_after_a_report_by_number():
    shard = connected_shard()
    numbered(shard)
    shard.pass_time(REPORT_TIMEOUT_S + 1)
    assert len(shard.book.accounting) == 0
    report_output(shard, 3)
    assert len(shard.book.accounting) == 1


def test_numbers_are_forgotten_with_their_stream_and_their_ticket():
    shard = connected_shard()
    numbered(shard)
    shard.book.accounting.on_scheduler_disconnected("s")
    report_output(shard, 9)
    served(shard, "a", prompt=90, ended=True)
    assert counter(shard) == 90 + 2 * 1
    numbered(shard, "b")
    shard.withdraw("b")
    report_output(shard, 9)
    assert len(shard.book.accounting) == 0
    assert counter(shard) == 90 + 2 * 1


def test_a_ticket_that_another_scheduler_numbers_keeps_one_number():
    shard = connected_shard()
    numbered(shard)
    moved = ServedTicket("a", 90, 2, has_ended=False, attempt=1, number=1)
    shard.book.on_service_report([moved], scheduler="t")
    report_output(shard, 9)
    report_output(shard, 4, scheduler="t", number=1)
    served(shard, "a", prompt=90, ended=True)
    assert counter(shard) == 90 + 2 * 4
