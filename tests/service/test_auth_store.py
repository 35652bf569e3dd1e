"""The SQLite store: what it says is kept is kept, in order, by one process at a time."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

from penstock.auth import rows, sqlite_store
from penstock.auth.account import Balance
from penstock.auth.keys import Key
from penstock.auth.reservation import LOST, Ask, Charge, Reservation
from penstock.auth.schema import MIGRATIONS, StoreTooNew, migrate
from penstock.auth.sqlite_store import StoreClosed, opened_store
from penstock.auth.store import Barrier, Charged, PutKey, PutTenant, Reserved
from penstock.auth.tenant import DEFAULT_TENANT, Tenant

ACME = Tenant(tenant_id="acme", weight=2.5, tokens_per_minute=600)
KEY = Key(key_id="k", tenant_id="acme", digest=b"\x00" * 32, created_at=1.5, display_name="für Anna", expires_at=9.0)


def reservation(number: int = 1) -> Reservation:
    ask = Ask(
        request_id=f"request-{number}",
        tenant_id="acme",
        key_id="k",
        edge_id="edge-1",
        model="m",
        prompt_tokens=10,
        max_output_tokens=20,
    )
    return Reservation(reservation_id=f"r-{number}", ask=ask, reserved_at=1.25, expires_at=101.25)


def charged(number: int = 1, *, outcome: str = "stop", output: int = 7) -> Charged:
    charge = Charge(
        reservation=reservation(number), prompt_tokens=10, output_tokens=output, outcome=outcome, settled_at=2.5
    )
    return Charged(charge, Balance("acme", 0, 0, 10, output, 1))


async def kept(store, change) -> None:
    """Return when `change` is kept; raises why it is not."""
    done = asyncio.get_running_loop().create_future()
    store.write(change, lambda error: done.set_exception(error) if error else done.set_result(None))
    await done


async def books_of(path):
    async with opened_store(path) as (_, books):
        return books


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "auth.sqlite")


async def test_everything_comes_back_as_it_was_written(path):
    balance = Balance("acme", 5, 1_800_000_000_000_001, 0, 0, 0)
    async with opened_store(path) as (store, books):
        assert [each.tenant_id for each in books.tenants] == [DEFAULT_TENANT]
        for change in (PutTenant(ACME), PutKey(KEY), Reserved(reservation(), balance)):
            await kept(store, change)
    books = await books_of(path)
    assert ACME in books.tenants
    assert books.keys == [KEY]
    assert books.reservations == [reservation()]
    assert books.balances == {"acme": balance}


async def test_a_tenant_that_has_keys_and_a_balance_can_get_new_limits(path):
    async with opened_store(path) as (store, _):
        for change in (PutTenant(ACME), PutKey(KEY), Reserved(reservation(), Balance("acme"))):
            await kept(store, change)
        await kept(store, PutTenant(Tenant(tenant_id="acme")))
    books = await books_of(path)
    assert Tenant(tenant_id="acme") in books.tenants
    assert (len(books.keys), len(books.reservations)) == (1, 1)


async def test_a_charge_ends_its_reservation_and_a_correction_takes_the_place_of_the_lost_row(path):
    async with opened_store(path) as (store, _):
        for change in (PutTenant(ACME), Reserved(reservation(), Balance("acme")), charged(outcome=LOST, output=0)):
            await kept(store, change)
    lost = await books_of(path)
    assert (lost.reservations, lost.lost) == ([], [reservation()])
    async with opened_store(path) as (store, _):
        await kept(store, charged(output=7))
    assert (await books_of(path)).lost == []
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT output_tokens, outcome FROM ledger").fetchall() == [(7, "stop")]


async def test_what_was_written_is_kept_before_the_block_is_left(path):
    async with opened_store(path) as (store, _):
        store.write(PutTenant(ACME), lambda _: None)
        for number in range(3_000):
            store.write(Reserved(reservation(number), Balance("acme")), lambda _: None)
    assert len((await books_of(path)).reservations) == 3_000


async def test_changes_that_wait_share_a_commit_and_are_told_in_order(path, monkeypatch):
    commits, told = [], []
    commit = sqlite_store._commit
    monkeypatch.setattr(sqlite_store, "_commit", lambda db, batch: commits.append(len(batch)) or commit(db, batch))
    async with opened_store(path) as (store, _):
        store.write(PutTenant(ACME), lambda _: told.append("tenant"))
        for number in range(500):
            store.write(Reserved(reservation(number), Balance("acme")), lambda _, number=number: told.append(number))
        await store.flush()
        assert told == ["tenant", *range(500)]
        assert store.pending == 0
    assert len(commits) < 250


async def test_a_promise_that_cannot_be_kept_is_told_and_leaves_nothing(path, monkeypatch):
    async with opened_store(path) as (store, _):
        with monkeypatch.context() as patch:
            patch.setattr(rows, "apply", half_way(rows.apply))
            with pytest.raises(sqlite3.OperationalError, match="full"):
                await kept(store, PutTenant(ACME))
        await kept(store, Barrier())
    assert ACME not in (await books_of(path)).tenants


async def test_a_charge_is_tried_again_until_it_is_kept(path, monkeypatch):
    tries = []

    def full_twice(connection, change, apply=rows.apply):
        tries.append(change)
        if len(tries) < 3:
            disk_is_full(connection, change)
        apply(connection, change)

    async with opened_store(path) as (store, _):
        await kept(store, PutTenant(ACME))
        await kept(store, Reserved(reservation(), Balance("acme")))
        monkeypatch.setattr(rows, "apply", full_twice)
        await kept(store, charged())
    assert tries == [charged()] * 3
    assert (await books_of(path)).reservations == []


async def test_charges_that_cannot_be_kept_do_not_hold_up_the_end_for_ever(path, monkeypatch):
    monkeypatch.setattr(sqlite_store, "RETRY_EVERY", 0.0)
    async with opened_store(path) as (store, _):
        await kept(store, PutTenant(ACME))
        await kept(store, Reserved(reservation(), Balance("acme")))
        monkeypatch.setattr(rows, "apply", disk_is_full)
        store.write(charged(), lambda _: None)
    monkeypatch.undo()
    assert (await books_of(path)).reservations == [reservation()]


async def test_a_closed_store_refuses_at_once(path):
    async with opened_store(path) as (store, _):
        pass
    with pytest.raises(StoreClosed):
        await kept(store, Barrier())


async def test_a_second_process_does_not_get_the_same_books(path, monkeypatch):
    monkeypatch.setattr(sqlite_store, "LOCK_TIMEOUT", 0.01)
    async with opened_store(path):
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            async with opened_store(path):
                pass


async def test_a_store_of_a_later_release_is_not_touched(path):
    await books_of(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(StoreTooNew, match="upgrade auth"):
        await books_of(path)


def test_migrating_twice_changes_nothing():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as raw:
        migrate(raw)
        before = raw.execute("SELECT sql FROM sqlite_master").fetchall()
        migrate(raw)
        assert raw.execute("SELECT sql FROM sqlite_master").fetchall() == before
        assert raw.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def half_way(apply):
    """The disk fills up once a part of the transaction is written."""

    def apply_and_fail(connection, change):
        apply(connection, change)
        disk_is_full(connection, change)

    return apply_and_fail


def disk_is_full(connection, change):
    message = "database or disk is full"
    raise sqlite3.OperationalError(message)
