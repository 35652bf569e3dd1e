"""The poison broadcast of a worker whose engine crashed, to every scheduler that it can reach."""

import asyncio

import pytest

from penstock.chassis.lifecycle import background
from penstock.chassis.streams.protocol import HIGHEST_VERSION
from penstock.v1.stream_pb2 import Hello
from penstock.worker.quarantine.broadcast import PoisonBroadcast
from penstock.worker.quarantine.poison_list import PoisonReport
from worker_mesh import TIMEOUT_S, fake_scheduler

SUSPECT, OTHER, CONFIRMED = PoisonReport(5, False, 30.0), PoisonReport(6, False, 30.0), PoisonReport(5, True, 600.0)


@pytest.fixture
async def broadcasting():
    """The worker's poison reports, their broadcast, and two schedulers that receive it."""
    known = []
    async with fake_scheduler() as (one, at_one), fake_scheduler() as (other, at_other):
        hello = Hello(protocol=HIGHEST_VERSION, instance_id="w", tier="worker", address="127.0.0.1:1")
        broadcast = PoisonBroadcast([at_one, at_other], hello, lambda: known)
        async with background(broadcast.run()):
            yield known, broadcast, (one, other)


async def received_reports(schedulers):
    async with asyncio.timeout(TIMEOUT_S):
        return [await each.poison_reports.get() for each in schedulers]


async def test_every_scheduler_receives_the_suspects_and_each_outcome(broadcasting):
    known, broadcast, schedulers = broadcasting
    for reports in ([SUSPECT, OTHER], [OTHER], [CONFIRMED, OTHER], [CONFIRMED]):
        known[:] = reports
        broadcast.send_changes()
        assert broadcast.is_active is (reports != [CONFIRMED])
        expected = {each.fingerprint: each.is_confirmed for each in reports}
        assert await received_reports(schedulers) == [expected, expected]
    assert await received_reports(schedulers) == [True, True], "it ends its streams when no suspect is left"


async def test_a_second_broadcast_is_received_like_the_first(broadcasting):
    known, broadcast, schedulers = broadcasting
    for _ in range(2):
        for reports in ([SUSPECT], []):
            known[:] = reports
            broadcast.send_changes()
            assert await received_reports(schedulers) == 2 * [{each.fingerprint: each.is_confirmed for each in reports}]
        assert await received_reports(schedulers) == [True, True]


async def test_reports_without_a_change_or_a_suspect_are_not_sent(broadcasting):
    known, broadcast, schedulers = broadcasting
    broadcast.send_changes()
    known[:] = [CONFIRMED]
    broadcast.send_changes()
    assert not broadcast.is_active
    known[:] = [CONFIRMED, OTHER]
    broadcast.send_changes()
    broadcast.send_changes()
    assert await received_reports(schedulers) == 2 * [{5: True, 6: False}]
    known[:] = [CONFIRMED]
    broadcast.send_changes()
    assert await received_reports(schedulers) == 2 * [{5: True}]
