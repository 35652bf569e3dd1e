"""The SQLite store: changes are persisted in order, by one process at a time."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from penstock.auth.identity.keys import Key
from penstock.auth.identity.tenant import DEFAULT_TENANT, Tenant
from penstock.auth.quota.reservation import OUTCOME_LOST, Charge, Reservation, ReservationRequest
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store import threaded
from penstock.auth.store.opening import opened_store
from penstock.auth.store.roll_up import Retention
from penstock.auth.store.sqlite import backend as sqlite_backend
from penstock.auth.store.sqlite import connection as store_connection
from penstock.auth.store.sqlite import sql
from penstock.auth.store.sqlite.sql import MIGRATIONS, migrate
from penstock.auth.store.store import (
    Barrier,
    Charged,
    ChargesNotPersisted,
    PutKey,
    PutTenant,
    Reserved,
    StoreClosed,
    StoreThreadFailed,
    StoreTooNew,
    StoreUnusable,
)

ACME_TENANT = Tenant(tenant_id="acme", weight=2.5, tokens_per_minute=600)
ACME_KEY = Key(
    key_id="k", tenant_id="acme", digest=b"\x00" * 32, created_at=1.5, display_name="für Anna", expires_at=9.0
)


def reservation(number: int = 1) -> Reservation:
    request = ReservationRequest(
        request_id=f"request-{number}",
        tenant_id="acme",
        key_id="k",
        edge_id="edge-1",
        model="m",
        prompt_tokens=10,
        max_output_tokens=20,
    )
    return Reservation(reservation_id=f"r-{number}", request=request, reserved_at=1.25, expires_at=101.25)


def charged(number: int = 1, *, outcome: str = "stop", output: int = 7) -> Charged:
    charge = Charge(
        reservation=reservation(number), prompt_tokens=10, output_tokens=output, outcome=outcome, settled_at=2.5
    )
    return Charged(charge, Balance("acme", 0, 0, 10, output, 1))


async def kept(store, change) -> None:
    """Wait until `change` is persisted. Raises its error."""
    done = asyncio.get_running_loop().create_future()
    store.write(change, lambda error: done.set_exception(error) if error else done.set_result(None))
    await done


async def stored_state(path):
    async with opened_store(path) as (_, state):
        return state


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "auth.sqlite")


async def test_all_values_are_restored_unchanged(path):
    balance = Balance("acme", 5, 1_800_000_000_000_001, 0, 0, 0)
    async with opened_store(path) as (store, state):
        assert [each.tenant_id for each in state.tenants] == [DEFAULT_TENANT]
        for change in (PutTenant(ACME_TENANT), PutKey(ACME_KEY), Reserved(reservation(), balance)):
            await kept(store, change)
    state = await stored_state(path)
    assert ACME_TENANT in state.tenants
    assert state.keys == [ACME_KEY]
    assert state.reservations == [reservation()]
    assert state.balances == {"acme": balance}


async def test_a_tenant_with_keys_and_a_balance_can_get_new_limits(path):
    async with opened_store(path) as (store, _):
        for change in (PutTenant(ACME_TENANT), PutKey(ACME_KEY), Reserved(reservation(), Balance("acme"))):
            await kept(store, change)
        await kept(store, PutTenant(Tenant(tenant_id="acme")))
    state = await stored_state(path)
    assert Tenant(tenant_id="acme") in state.tenants
    assert (len(state.keys), len(state.reservations)) == (1, 1)


async def test_a_charge_ends_its_reservation_and_a_correction_replaces_the_lost_row(path):
    async with opened_store(path) as (store, _):
        for change in (
            PutTenant(ACME_TENANT),
            Reserved(reservation(), Balance("acme")),
            charged(outcome=OUTCOME_LOST, output=0),
        ):
            await kept(store, change)
    lost = await stored_state(path)
    assert (lost.reservations, lost.lost) == ([], [reservation()])
    async with opened_store(path) as (store, _):
        await kept(store, charged(output=7))
    assert (await stored_state(path)).lost == []
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT output_tokens, outcome FROM ledger").fetchall() == [(7, "stop")]


async def test_changes_are_persisted_before_the_store_closes(path):
    async with opened_store(path) as (store, _):
        store.write(PutTenant(ACME_TENANT), lambda _: None)
        for number in range(3_000):
            store.write(Reserved(reservation(number), Balance("acme")), lambda _: None)
    assert len((await stored_state(path)).reservations) == 3_000


async def test_pending_changes_share_a_commit_and_complete_in_order(path, monkeypatch):
    commits, completed = [], []
    commit = sqlite_backend.commit
    monkeypatch.setattr(
        sqlite_backend, "commit", lambda db, batch, *rest: commits.append(len(batch)) or commit(db, batch, *rest)
    )
    async with opened_store(path) as (store, _):
        store.write(PutTenant(ACME_TENANT), lambda _: completed.append("tenant"))
        for number in range(500):
            store.write(
                Reserved(reservation(number), Balance("acme")), lambda _, number=number: completed.append(number)
            )
        await store.flush()
        assert completed == ["tenant", *range(500)]
        assert store.pending == 0
    assert len(commits) < 250


async def test_a_failed_change_is_reported_and_not_stored(path, monkeypatch):
    async with opened_store(path) as (store, _):
        with monkeypatch.context() as patch:
            patch.setattr(sql, "apply", half_way(sql.apply))
            with pytest.raises(sqlite3.OperationalError, match="full"):
                await kept(store, PutTenant(ACME_TENANT))
        await kept(store, Barrier())
    assert ACME_TENANT not in (await stored_state(path)).tenants


async def test_a_charge_is_retried_until_it_is_stored(path, monkeypatch):
    tries = []

    def full_twice(connection, change, apply=sql.apply):
        tries.append(change)
        if len(tries) < 3:
            disk_is_full(connection, change)
        apply(connection, change)

    async with opened_store(path) as (store, _):
        await kept(store, PutTenant(ACME_TENANT))
        await kept(store, Reserved(reservation(), Balance("acme")))
        monkeypatch.setattr(sql, "apply", full_twice)
        await kept(store, charged())
    assert tries == [charged()] * 3
    assert (await stored_state(path)).reservations == []


async def test_charges_that_cannot_be_stored_do_not_block_the_shutdown_and_are_counted(path, monkeypatch):
    monkeypatch.setattr(threaded, "RETRY_INTERVAL_S", 0.0)
    with pytest.raises(ChargesNotPersisted, match="1 charges were not written"):
        async with opened_store(path) as (store, _):
            await kept(store, PutTenant(ACME_TENANT))
            await kept(store, Reserved(reservation(), Balance("acme")))
            monkeypatch.setattr(sql, "apply", disk_is_full)
            store.write(charged(), lambda _: None)
    monkeypatch.undo()
    assert (await stored_state(path)).reservations == [reservation()]


async def test_availability_is_reported_before_the_changes_that_fail_and_after_a_probe_succeeds(path, monkeypatch):
    monkeypatch.setattr(threaded, "RETRY_INTERVAL_S", 0.0)
    told, is_back = [], asyncio.Event()
    async with opened_store(path) as (store, _):
        store.notify_availability(lambda is_available: told.append(is_available) or (is_available and is_back.set()))
        with monkeypatch.context() as patch:
            patch.setattr(sql, "apply", disk_is_full)
            patch.setattr(sql, "probe", lambda connection: disk_is_full(connection, None))
            store.write(PutTenant(ACME_TENANT), lambda error: told.append(str(error)))
            await store.flush()
            assert told == [False, "database or disk is full"]
            assert not store.is_available
        await is_back.wait()  # without a change to write
        assert store.is_available
        await kept(store, PutTenant(ACME_TENANT))
    assert told[-1]


async def test_an_error_that_is_not_of_sqlite_ends_the_watch_and_rejects_later_changes(path, monkeypatch):
    def overflow(connection, change):
        raise OverflowError("Python int too large to convert to SQLite INTEGER")

    async with opened_store(path) as (store, _):
        monkeypatch.setattr(sql, "apply", overflow)
        store.write(PutTenant(ACME_TENANT), lambda _: pytest.fail("a change of a failed store was answered"))
        with pytest.raises(StoreThreadFailed, match="OverflowError"):
            await store.watch()
        assert not store.is_available
        with pytest.raises(StoreClosed):
            await kept(store, Barrier())


async def test_the_thread_rolls_up_the_ledger_and_reports_the_disk(path, monkeypatch):
    monkeypatch.setattr(threaded, "IDLE_INTERVAL_S", 0.01)
    volume, looks = {"used": 0.95}, []

    def look(path):
        looks.append(path)
        return volume["used"]

    monkeypatch.setattr(sqlite_backend, "used_share", look)
    with capture_logs() as lines:
        async with opened_store(path, retention=Retention(max_age=10.0), clock=lambda: 100.0, disk_watermark=0.9) as (
            store,
            _,
        ):
            await kept(store, PutTenant(ACME_TENANT))
            for number in range(40):
                await kept(store, charged(number))
            enough = len(looks) + 8  # more slices than 40 rows need
            async with asyncio.timeout(20):
                while (  # noqa: ASYNC110  # no event
                    len(looks) < enough or store.figures["ledger_rows"] or not store.figures["store_disk_high"]
                ):
                    await asyncio.sleep(0)
                volume["used"] = 0.5
                while store.figures["store_disk_high"]:  # noqa: ASYNC110  # as above
                    await asyncio.sleep(0)
    told = [line["event"] for line in lines if line["event"].startswith("store_disk")]
    assert told == ["store_disk_high", "store_disk_normal"]
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT count(*) FROM ledger").fetchone() == (0,)
        assert raw.execute("SELECT * FROM usage").fetchall() == [("1970-01-01", "acme", "k", "m", 40, 400, 280)]


async def test_an_error_in_the_answer_to_one_change_leaves_the_others_answered(path):
    def fail(_):
        raise ValueError("a field is out of range")

    told = []
    async with opened_store(path) as (store, _):
        with capture_logs() as lines:
            store.write(PutTenant(ACME_TENANT), fail)
            store.write(PutKey(ACME_KEY), told.append)
            await store.flush()
    assert told == [None]
    assert [line["change"] for line in lines if line["event"] == "store_answer_failed"] == ["PutTenant"]


async def test_a_closed_store_rejects_changes(path):
    async with opened_store(path) as (store, _):
        pass
    with pytest.raises(StoreClosed):
        await kept(store, Barrier())


async def test_a_second_process_cannot_open_the_store(path, monkeypatch):
    monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_S", 0.01)
    async with opened_store(path):
        with pytest.raises(StoreUnusable, match="another process has it open"):
            async with opened_store(path):
                pass


def overwrite(path, damaged):
    content = bytearray(Path(path).read_bytes())
    content[damaged] = b"x" * len(content[damaged])
    Path(path).write_bytes(content)


@pytest.mark.parametrize("damaged", [slice(0, 16), slice(4096, 12_288)], ids=["header", "pages"])
async def test_a_damaged_store_is_an_error_that_says_what_to_do(path, damaged):
    await stored_state(path)
    overwrite(path, damaged)
    with pytest.raises(StoreUnusable, match="restore a backup"):
        await stored_state(path)


async def test_a_store_in_a_missing_folder_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(StoreUnusable, match="must be able to create"):
        await stored_state(str(tmp_path / "missing" / "auth.db"))


async def test_a_store_of_a_later_release_is_not_changed(path):
    await stored_state(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(StoreTooNew, match="upgrade auth"):
        await stored_state(path)


def test_migrating_twice_changes_nothing():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as raw:
        migrate(raw)
        before = raw.execute("SELECT sql FROM sqlite_master").fetchall()
        migrate(raw)
        assert raw.execute("SELECT sql FROM sqlite_master").fetchall() == before
        assert raw.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def half_way(apply):
    """Let the disk fill up after a part of the transaction was written."""

    def apply_and_fail(connection, change):
        apply(connection, change)
        disk_is_full(connection, change)

    return apply_and_fail


def disk_is_full(connection, change):
    message = "database or disk is full"
    raise sqlite3.OperationalError(message)


async def test_the_charges_of_an_answer_survive_a_restart(path):
    """This holds for a beginning that was charged, lost or is in progress, and for any charges of its requests."""
    begun, lost = part("begun", made=30), part("lost", outcome=OUTCOME_LOST)
    onward = part("onward", "lost", emitted=25, made=5, charged=30)
    async with opened_store(path) as (store, _):
        await kept(store, PutTenant(ACME_TENANT))
        for charge in (begun, lost, onward):
            await kept(store, Charged(charge, Balance("acme")))
        await kept(store, Reserved(part("live", "begun", emitted=12).reservation, Balance("acme")))
    state = await stored_state(path)
    assert state.charged == [begun, onward]
    assert state.lost == [lost.reservation]
    assert state.reservations == [part("live", "begun", emitted=12).reservation]
    table = ReservationTable(ttl=100.0)
    table.put_tenant(ACME_TENANT, 3.0)
    table.restore(state.reservations, state.lost, state.charged)
    again = table.settle("live", 10, 8, "stop", 3.0)
    assert (again.prompt_tokens, again.output_tokens) == (0, 8)
    late = table.settle("lost", 10, 28, "cancelled", 3.0)
    assert (late.prompt_tokens, late.output_tokens) == (0, 3)


async def test_a_file_of_the_first_release_keeps_its_ledger(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(f"BEGIN; {MIGRATIONS[0]} PRAGMA user_version = 1; COMMIT;")
        connection.execute("INSERT INTO tenants VALUES ('acme', 2, 1.0, 0, 0, 0)")
        row = ("r", "request", "acme", "k", "edge-1", "m", 10, 20, 1.0, 101.0, 2.0, 10, 7, "stop")
        connection.execute(f"INSERT INTO ledger VALUES ({', '.join('?' * 14)})", row)
    [charge] = (await stored_state(path)).charged
    assert (charge.reservation.request.max_output_tokens, charge.output_tokens, charge.made_tokens) == (20, 7, 7)


def part(request_id, answer_id="", *, emitted=0, made=0, charged=None, outcome="cancelled") -> Charge:
    """Return the charge of one request of an answer."""
    own = replace(
        reservation().request,
        request_id=request_id,
        answer_id=answer_id,
        emitted_tokens=emitted,
        fingerprint=b"f" * 16,
        max_output_tokens=200,
    )
    is_lost = outcome == OUTCOME_LOST
    return Charge(
        reservation=replace(reservation(), reservation_id=request_id, request=own),
        prompt_tokens=0 if is_lost else 10,
        output_tokens=made if charged is None else charged,
        made_tokens=made,
        outcome=outcome,
        settled_at=2.5,
    )


def test_a_large_statement_leaves_no_file_open(tmp_path):
    with closing(store_connection.connect(str(tmp_path / "auth.sqlite"))) as connection:
        connection.execute("CREATE TABLE scratch (number INTEGER UNIQUE, text TEXT)")
        connection.executemany("INSERT INTO scratch VALUES (?, ?)", [(each, "x" * 200) for each in range(2_000)])
        connection.execute("BEGIN")
        before = descriptors()
        connection.execute("UPDATE scratch SET number = number + 10000, text = text || 'y'")
        connection.execute("COMMIT")
        assert descriptors() == before


def descriptors():
    return psutil.Process().num_fds()
