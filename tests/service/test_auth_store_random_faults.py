"""Random faults of the connection to PostgreSQL under load: the store holds what was acknowledged, and nothing else."""

import asyncio
import random
from collections import Counter

import psycopg
import pytest
from structlog.testing import capture_logs

from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store import threaded
from penstock.auth.store.opening import opened_store
from penstock.auth.store.postgres import backend as postgres_backend
from penstock.auth.store.store import PutTenant, Reserved
from postgres_relay import postgres_relay
from store_changes import ACME_TENANT, charged, kept, reservation, stored_state
from stores import administer

CLIENTS = 12
FAULTS = 40  # three times as many at most, until commits were lost and others were applied without an answer


class Load:
    """Clients that reserve and charge, and what they were told."""

    def __init__(self, store, seed):
        self.store = store
        self.rng = random.Random(seed)
        self.number = 0
        self.reserved, self.charged = set(), set()
        self.failed = 0
        self.is_ending = False

    async def client(self):
        while not self.is_ending:
            self.number += 1
            number = self.number
            try:
                await kept(self.store, Reserved(reservation(number), Balance("acme", number)))
            except psycopg.Error:
                self.failed += 1
                await asyncio.sleep(0.001)
                continue
            self.reserved.add(f"r-{number}")
            if self.rng.random() < 0.8:
                await kept(self.store, charged(number))
                self.charged.add(f"r-{number}")


async def disturb(relay, rng):
    """One fault, after a while in which the load runs."""
    await asyncio.sleep(rng.random() * 0.03)
    kind = rng.choice(["cut", "lose", "hold", "refuse", "late"])
    relay.loses_replies = kind in ("lose", "refuse")
    relay.holds_requests = kind in ("hold", "late")
    await asyncio.sleep(rng.random() * 0.02)
    relay.refuses = kind == "refuse"
    relay.holds_requests = False
    relay.cut()
    await asyncio.sleep(rng.random() * (0.1 if relay.refuses else 0.01))
    relay.loses_replies = relay.refuses = False
    if kind == "late":  # the requests arrive after those of the next connection
        await asyncio.sleep(0.02)
        await relay.release()
    relay.held.clear()


def outcomes(lines):
    """Count the commits without an answer, by whether the server applied them."""
    return Counter(line["applied"] for line in lines if line["event"] == "store_outcome_decided")


@pytest.mark.parametrize("seed", range(3))
async def test_acknowledged_changes_are_stored_once_and_failed_ones_are_not(postgres, database, monkeypatch, seed):
    monkeypatch.setattr(threaded, "RETRY_INTERVAL_S", 0.01)
    monkeypatch.setattr(postgres_backend, "ANSWER_TIMEOUT_S", 1.0)
    if seed % 2:  # as if the server could not end former sessions
        monkeypatch.setattr(postgres_backend, "end_sessions", lambda connection, owners: None)
    rng, name = random.Random(seed), psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    with capture_logs() as lines:
        async with postgres_relay(postgres) as relay, opened_store(relay.url(name)) as (store, _):
            await kept(store, PutTenant(ACME_TENANT))
            load = Load(store, seed)
            clients = [asyncio.create_task(load.client()) for _ in range(CLIENTS)]
            for number in range(3 * FAULTS):
                await disturb(relay, rng)
                if number >= FAULTS and load.failed and set(outcomes(lines)) == {True, False}:
                    break
            load.is_ending = True
            await asyncio.gather(*clients)
    state = await stored_state(database)
    assert {each.reservation_id for each in state.reservations} == load.reserved - load.charged
    assert {each.reservation.reservation_id for each in state.charged} == load.charged
    [(requests, tokens)] = administer(database, "SELECT requests, output_tokens FROM usage")
    assert (requests, tokens) == (len(load.charged), 7 * len(load.charged))
    decided = outcomes(lines)
    assert decided[True], "no commit was applied without an answer"
    assert decided[False], "no commit was lost"
    assert load.failed, "no outage was long enough to be seen"
