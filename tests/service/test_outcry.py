"""A worker that lost its engine and every scheduler that it can reach: all hear of suspects, as long as there are."""

import asyncio

import pytest

from penstock.chassis.lifecycle import background
from penstock.chassis.streams.link import PROTOCOL_VERSION
from penstock.v1.stream_pb2 import Hello
from penstock.worker.quarantine.broadcast import PoisonBroadcast
from penstock.worker.quarantine.poison_list import PoisonReport
from worker_mesh import TIMEOUT_S, fake_scheduler

SUSPECT, OTHER, GUILTY = PoisonReport(5, False, 30.0), PoisonReport(6, False, 30.0), PoisonReport(5, True, 600.0)


@pytest.fixture
async def cry():
    """What the worker knows, how it tells, and two schedulers that hear it."""
    known = []
    async with fake_scheduler() as (one, at_one), fake_scheduler() as (other, at_other):
        hello = Hello(protocol=PROTOCOL_VERSION, instance_id="w", tier="worker", address="127.0.0.1:1")
        outcry = PoisonBroadcast([at_one, at_other], hello, lambda: known)
        async with background(outcry.run()):
            yield known, outcry, (one, other)


async def heard(schedulers):
    async with asyncio.timeout(TIMEOUT_S):
        return [await each.poison_reports.get() for each in schedulers]


async def test_every_scheduler_hears_of_suspects_and_of_what_became_of_them(cry):
    known, outcry, schedulers = cry
    for blames in ([SUSPECT, OTHER], [OTHER], [GUILTY, OTHER], [GUILTY]):
        known[:] = blames
        outcry.tell()
        assert outcry.is_on is (blames != [GUILTY])
        expected = {each.fingerprint: each.is_confirmed for each in blames}
        assert await heard(schedulers) == [expected, expected]
    assert await heard(schedulers) == [True, True], "it goes when all is known"


async def test_who_begins_again_is_heard_again(cry):
    known, outcry, schedulers = cry
    for _ in range(2):
        for blames in ([SUSPECT], []):
            known[:] = blames
            outcry.tell()
            assert await heard(schedulers) == 2 * [{each.fingerprint: each.is_confirmed for each in blames}]
        assert await heard(schedulers) == [True, True]


async def test_what_is_no_news_is_not_told(cry):
    known, outcry, schedulers = cry
    outcry.tell()
    known[:] = [GUILTY]
    outcry.tell()
    assert not outcry.is_on
    known[:] = [GUILTY, OTHER]
    outcry.tell()
    outcry.tell()
    assert await heard(schedulers) == 2 * [{5: True, 6: False}]
    known[:] = [GUILTY]
    outcry.tell()
    assert await heard(schedulers) == 2 * [{5: True}]
