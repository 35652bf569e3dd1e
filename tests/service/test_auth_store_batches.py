"""Which changes of the store share a commit."""

import asyncio

import pytest

from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store import threaded
from penstock.auth.store.opening import opened_store
from penstock.auth.store.sqlite.backend import SqliteBackend
from penstock.auth.store.store import Charged, PutKey, PutTenant, Reserved
from store_changes import ACME_KEY, ACME_TENANT, charged, kept, reservation, stored_state

NEVER_S = 600.0


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "auth.sqlite")


@pytest.fixture
def batches(monkeypatch):
    """Names of the changes of each commit that has changes."""
    found, commit = [], SqliteBackend.commit

    def record(backend, batch):
        if batch:
            found.append([type(change).__name__ for change, _ in batch])
        return commit(backend, batch)

    monkeypatch.setattr(SqliteBackend, "commit", record)
    return found


async def put_reserved(store):
    for each in (PutTenant(ACME_TENANT), PutKey(ACME_KEY), Reserved(reservation(1), Balance("acme"))):
        assert await kept(store, each) is None


async def test_a_charge_waits_for_the_commit_of_the_next_other_change(path, batches, monkeypatch):
    monkeypatch.setattr(threaded, "MAX_CHARGE_DELAY_S", NEVER_S)
    async with opened_store(path) as (store, _):
        await put_reserved(store)
        batches.clear()
        errors = []
        store.write(charged(1), errors.append)
        await asyncio.sleep(0.1)  # a thread that had received the charge would commit it
        assert (batches, errors, store.pending) == ([], [], 1)
        assert await kept(store, Reserved(reservation(2), Balance("acme"))) is None
        assert (batches, errors) == ([["Charged", "Reserved"]], [None])


async def test_a_charge_without_other_changes_is_written_after_a_delay(path, batches, monkeypatch):
    monkeypatch.setattr(threaded, "MAX_CHARGE_DELAY_S", 0.01)
    async with opened_store(path) as (store, _):
        await put_reserved(store)
        batches.clear()
        assert await kept(store, charged(1)) is None
        assert batches == [["Charged"]]


async def test_changes_of_one_iteration_of_the_event_loop_share_a_commit(path, batches):
    async with opened_store(path) as (store, _):
        await put_reserved(store)
        batches.clear()
        for number in range(2, 66):
            store.write(Reserved(reservation(number), Balance("acme")), lambda _: None)
        await store.flush()
        assert batches == [["Reserved"] * 64 + ["Barrier"]]


async def test_closing_writes_the_charges_that_wait(path, batches, monkeypatch):
    monkeypatch.setattr(threaded, "MAX_CHARGE_DELAY_S", NEVER_S)
    async with opened_store(path) as (store, _):
        await put_reserved(store)
        store.write(charged(1), lambda _: None)
    assert batches[-1] == [Charged.__name__]
    state = await stored_state(path)
    assert not state.reservations
