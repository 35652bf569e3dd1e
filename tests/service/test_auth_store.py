"""The store, in a SQLite file and in PostgreSQL: changes are persisted in order."""

import asyncio
import itertools
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from penstock.auth.identity.policy import Budget, BudgetPeriod, BudgetUnit, Limits, Policy
from penstock.auth.identity.tenant import DEFAULT_TENANT, Tenant
from penstock.auth.quota.grant_uses import GrantUse
from penstock.auth.quota.prices import Price, PriceList
from penstock.auth.quota.reservation import OUTCOME_LOST, Charge, Metering
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.auth.quota.scope_quota import ScopeUse
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.regions.share import ShareRow
from penstock.auth.store import threaded
from penstock.auth.store.opening import opened_store
from penstock.auth.store.roll_up import Retention
from penstock.auth.store.store import (
    Barrier,
    Charged,
    ChargesNotPersisted,
    DeleteKey,
    DeletePrice,
    DeleteTenant,
    PutKey,
    PutPrice,
    PutShare,
    PutTenant,
    Reserved,
    StoreClosed,
)
from penstock.v1.inference_pb2 import PRIORITY_BATCH
from store_changes import ACME_KEY, ACME_TENANT, charged, corrected, kept, part, reservation, stored_state

DAY_S = 86_400.0


async def test_all_values_are_restored_unchanged(stored):
    balance = Balance("acme", 5, 1_800_000_000_000_001, 0, 0, 0)
    async with opened_store(stored.location) as (store, state):
        assert [each.tenant_id for each in state.tenants] == [DEFAULT_TENANT]
        for change in (PutTenant(ACME_TENANT), PutKey(ACME_KEY), Reserved(reservation(), balance)):
            await kept(store, change)
    state = await stored_state(stored.location)
    assert ACME_TENANT in state.tenants
    assert state.keys == [ACME_KEY]
    assert state.reservations == [reservation()]
    assert state.balances == {"acme": balance}


@pytest.mark.parametrize("known", [None, 9.0], ids=["not at all", "later"])
async def test_the_first_revocation_of_a_key_stays(stored, known):
    """Another replica of auth may not know of it when it sets the limits of the key."""
    limits, other = replace(ACME_KEY, revoked_at=known, policy=POLICY), replace(ACME_KEY, digest=b"\x01" * 32)
    async with opened_store(stored.location) as (store, _):
        for change in (PutTenant(ACME_TENANT), PutKey(replace(ACME_KEY, revoked_at=7.0)), PutKey(limits)):
            await kept(store, change)
    assert (await stored_state(stored.location)).keys == [replace(limits, revoked_at=7.0)]
    async with opened_store(stored.location) as (store, _):
        await kept(store, PutKey(other))
    assert (await stored_state(stored.location)).keys == [other]


POLICY = Policy(
    limits=Limits(input_tokens_per_minute=7, output_tokens_per_minute=8),
    allowed_models=("m", "qwen*"),
    allowed_regions=("eu", "us"),
    model_limits=(("m:7b", Limits(requests_per_minute=1, concurrent_requests=2)),),
    budgets=(Budget(BudgetPeriod.MONTH, BudgetUnit.MONEY, 2**60), Budget(BudgetPeriod.DAY, BudgetUnit.TOKENS, 1)),
    soft_share=0.8,
    shadow=True,
)
PRICE = Price("m", 10**15, 5, 0)


async def test_policies_prices_and_what_scopes_have_used_are_restored_unchanged(stored):
    priced = replace(reservation(), metering=Metering(reserved_nanos=2**62))
    uses = (
        ScopeUse("acme", "", 1, 2, 3, 2**63 - 1, 1.25, 10, 11, 12, 13, 14, 2**63 - 1),
        ScopeUse("acme", "key:k"),
        ScopeUse("acme", "model:m"),
    )
    tenant, key = replace(ACME_TENANT, policy=POLICY), replace(ACME_KEY, policy=POLICY)
    async with opened_store(stored.location) as (store, state):
        assert (list(state.prices), list(state.scope_uses)) == ([], [])
        for change in (PutTenant(tenant), PutKey(key), PutPrice(PRICE._replace(output_nanos=1)), PutPrice(PRICE)):
            await kept(store, change)
        await kept(store, Reserved(priced, Balance("acme"), None, (uses[0]._replace(day_tokens=0),)))
        await kept(store, charged(2)._replace(scope_uses=uses))
    state = await stored_state(stored.location)
    assert tenant in state.tenants
    assert state.keys == [key]
    assert [each.reserved_nanos for each in state.reservations] == [2**62]
    assert list(state.prices) == [PRICE]
    assert sorted(state.scope_uses) == sorted(uses)


async def test_what_a_scope_has_used_is_deleted_with_its_key_and_its_tenant(stored):
    uses = (ScopeUse("acme", ""), ScopeUse("acme", "key:k"), ScopeUse("acme", "key:k2"))
    async with opened_store(stored.location) as (store, _):
        for change in (PutTenant(ACME_TENANT), PutKey(ACME_KEY), charged()._replace(scope_uses=uses), DeleteKey("k")):
            await kept(store, change)
    assert sorted((await stored_state(stored.location)).scope_uses) == [uses[0], uses[2]]
    async with opened_store(stored.location) as (store, _):
        for change in (DeleteTenant("acme", 3.0), PutPrice(PRICE), DeletePrice("m")):
            await kept(store, change)
    state = await stored_state(stored.location)
    assert (list(state.scope_uses), list(state.prices)) == ([], [])


async def test_shares_of_regions_are_stored_with_the_state_of_their_limits(stored):
    rows = [ShareRow("acme", scope, "us", 950, 1) for scope in ("", "key:k", "key:k2")]
    balance, use = Balance("acme", 5, 6, 7, 8, 9), ScopeUse("acme", "key:k2", 1, 2, 3, 4)
    async with opened_store(stored.location) as (store, state):
        assert list(state.shares) == []
        for change in (PutTenant(ACME_TENANT), PutKey(ACME_KEY), PutShare(rows[0]._replace(rates=1), Balance("acme"))):
            await kept(store, change)
        pending = [kept(store, PutShare(row, balance, (use,))) for row in rows]
        await asyncio.gather(*pending)
    state = await stored_state(stored.location)
    assert sorted(state.shares) == rows
    assert (state.balances, list(state.scope_uses)) == ({"acme": balance}, [use])
    async with opened_store(stored.location) as (store, _):
        await kept(store, DeleteKey("k"))
    assert sorted((await stored_state(stored.location)).shares) == [rows[0], rows[2]]
    async with opened_store(stored.location) as (store, _):
        await kept(store, DeleteTenant("acme", 3.0))
    assert list((await stored_state(stored.location)).shares) == []


async def test_a_tenant_with_keys_and_a_balance_can_get_new_limits(stored):
    async with opened_store(stored.location) as (store, _):
        for change in (PutTenant(ACME_TENANT), PutKey(ACME_KEY), Reserved(reservation(), Balance("acme"))):
            await kept(store, change)
        await kept(store, PutTenant(Tenant(tenant_id="acme")))
    state = await stored_state(stored.location)
    assert Tenant(tenant_id="acme") in state.tenants
    assert (len(state.keys), len(state.reservations)) == (1, 1)


async def test_a_charge_ends_its_reservation_and_a_correction_replaces_the_lost_row(stored):
    async with opened_store(stored.location) as (store, _):
        for change in (
            PutTenant(ACME_TENANT),
            Reserved(reservation(), Balance("acme")),
            charged(outcome=OUTCOME_LOST, output=0),
        ):
            await kept(store, change)
    lost = await stored_state(stored.location)
    assert (lost.reservations, lost.lost) == ([], [reservation()])
    async with opened_store(stored.location) as (store, _):
        await kept(store, corrected(charged(output=7)))
    assert (await stored_state(stored.location)).lost == []
    assert stored.rows("SELECT output_tokens, outcome FROM ledger") == [(7, "stop")]


async def test_changes_are_persisted_before_the_store_closes(stored):
    async with opened_store(stored.location) as (store, _):
        store.write(PutTenant(ACME_TENANT), lambda _: None)
        for number in range(3_000):
            store.write(Reserved(reservation(number), Balance("acme")), lambda _: None)
    assert len((await stored_state(stored.location)).reservations) == 3_000


async def test_an_error_in_the_answer_to_one_change_leaves_the_others_answered(stored):
    def fail(_):
        raise ValueError("a field is out of range")

    told = []
    async with opened_store(stored.location) as (store, _):
        with capture_logs() as lines:
            store.write(PutTenant(ACME_TENANT), fail)
            store.write(PutKey(ACME_KEY), told.append)
            await store.flush()
    assert told == [None]
    assert [line["change"] for line in lines if line["event"] == "store_answer_failed"] == ["PutTenant"]


async def test_a_closed_store_rejects_changes(stored):
    async with opened_store(stored.location) as (store, _):
        pass
    with pytest.raises(StoreClosed):
        await kept(store, Barrier())


async def test_the_charges_of_an_answer_survive_a_restart(stored):
    """This holds for a beginning that was charged, lost or is in progress, and for any charges of its requests."""
    begun, lost = part("begun", made=30), part("lost", outcome=OUTCOME_LOST)
    onward = part("onward", "lost", emitted=25, made=5, charged=30)
    async with opened_store(stored.location) as (store, _):
        await kept(store, PutTenant(ACME_TENANT))
        for charge in (begun, lost, onward):
            await kept(store, Charged(charge, Balance("acme")))
        await kept(store, Reserved(part("live", "begun", emitted=12).reservation, Balance("acme")))
    state = await stored_state(stored.location)
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


def line(charge: Charge) -> Charge:
    """Return the charge of a run of a line of a batch."""
    request = replace(charge.reservation.request, priority=PRIORITY_BATCH, is_delegated=True)
    return replace(charge, reservation=replace(charge.reservation, request=request))


async def test_a_line_of_a_batch_is_charged_once_and_by_its_class_after_a_restart(stored):
    """This holds for runs that were charged, lost or are in progress."""
    answered = line(part("answered", "a", made=30, outcome="stop"))
    lost = line(part("lost", "b", outcome=OUTCOME_LOST))
    again = line(part("again", "a")).reservation
    async with opened_store(stored.location) as (store, _):
        await kept(store, PutTenant(ACME_TENANT))
        for charge in (answered, lost):
            await kept(store, Charged(charge, Balance("acme")))
        await kept(store, Reserved(again, Balance("acme")))
    state = await stored_state(stored.location)
    assert (state.charged, state.lost, state.reservations) == ([answered], [lost.reservation], [again])
    prices = PriceList([Price("m", 2_000_000, 0, 2_000_000)], batch_percent=50)  # 1 nano for a token of class batch
    table = ReservationTable(ttl=100.0, prices=prices)
    table.put_tenant(ACME_TENANT, 3.0)
    table.restore(state.reservations, state.lost, state.charged)
    repeated, late = table.settle("again", 10, 30, "stop", 3.0), table.settle("lost", 10, 28, "stop", 3.0)
    assert (repeated.prompt_tokens, repeated.output_tokens, repeated.price_nanos) == (0, 0, 0)
    assert (late.prompt_tokens, late.output_tokens, late.price_nanos) == (10, 28, 38)
    async with opened_store(stored.location) as (store, _):
        await kept(store, Charged(late, Balance("acme")))
    assert sorted(stored.rows("SELECT priority, is_delegated, price_nanos FROM ledger")) == [(3, 1, 0), (3, 1, 38)]


async def test_deleted_keys_and_tenants_are_not_restored_and_a_tenant_may_come_back(stored):
    async with opened_store(stored.location) as (store, _):
        for change in (PutTenant(ACME_TENANT), PutKey(ACME_KEY), charged(), DeleteKey("k")):
            await kept(store, change)
    assert (await stored_state(stored.location)).keys == []
    async with opened_store(stored.location) as (store, _):
        for change in (PutKey(ACME_KEY), DeleteTenant("acme", 3.0)):
            await kept(store, change)
    state = await stored_state(stored.location)
    assert (len(state.tenants), state.keys, state.balances, len(state.charged)) == (1, [], {}, 1)
    async with opened_store(stored.location) as (store, _):
        await kept(store, PutTenant(ACME_TENANT))
    assert ACME_TENANT in (await stored_state(stored.location)).tenants


async def test_grant_uses_are_restored_until_they_are_forgotten(stored):
    old, new = (
        GrantUse(bytes([number]), "q", f"r-{number}", 5, 9, forget_at) for number, forget_at in ((1, 2.0), (2, 9.0))
    )
    async with opened_store(stored.location) as (store, _):
        await kept(store, PutTenant(ACME_TENANT))
        await kept(store, Reserved(reservation(1), Balance("acme"), old))
        await kept(store, Reserved(reservation(2), Balance("acme"), new))
        await kept(store, charged(2)._replace(grant_use=new._replace(tokens=7)))  # settled at 2.5
    assert (await stored_state(stored.location)).grant_uses == [new._replace(tokens=7)]


async def test_changes_of_one_transaction_take_effect_in_their_order(stored):
    """A tenant is created, spends and is replaced; a lost charge is corrected; a deleted tenant leaves no balance."""
    lost = charged(2, outcome=OUTCOME_LOST, output=0)
    corrected = lost._replace(charge=replace(charged(2, output=9).charge, is_correction=True))
    other = Tenant(tenant_id="other")
    changes = [
        *(PutTenant(ACME_TENANT), Reserved(reservation(1), Balance("acme", 1)), PutKey(ACME_KEY)),
        *(
            Reserved(reservation(2), Balance("acme", 2)),
            charged(1),
            lost,
            corrected,
            PutTenant(Tenant(tenant_id="acme")),
        ),
        *(Reserved(reservation(3), Balance("acme", 3)), PutTenant(other), DeleteTenant("other", 3.0), Barrier()),
    ]
    async with opened_store(stored.location) as (store, _):
        errors = []
        for change in changes:
            store.write(change, errors.append)
        await store.flush()
        assert errors == [None] * len(changes)
    state = await stored_state(stored.location)
    assert [each.tenant_id for each in state.tenants if each.tenant_id != DEFAULT_TENANT] == ["acme"]
    assert state.reservations == [reservation(3)]
    assert state.balances == {"acme": Balance("acme", 3)}
    assert sorted(stored.rows("SELECT reservation_id, output_tokens, outcome FROM ledger")) == [
        ("r-1", 7, "stop"),
        ("r-2", 9, "stop"),
    ]


async def test_pending_changes_share_a_commit_and_complete_in_order(stored, monkeypatch):
    commits, completed = [], []
    commit = stored.backend.commit
    monkeypatch.setattr(stored.backend, "commit", lambda self, batch: commits.append(len(batch)) or commit(self, batch))
    async with opened_store(stored.location) as (store, _):
        store.write(PutTenant(ACME_TENANT), lambda _: completed.append("tenant"))
        for number in range(500):
            store.write(
                Reserved(reservation(number), Balance("acme")), lambda _, number=number: completed.append(number)
            )
        await store.flush()
        assert completed == ["tenant", *range(500)]
        assert store.pending == 0
    assert len(commits) < 250


async def test_a_failed_change_is_reported_and_not_stored(stored):
    async with opened_store(stored.location) as (store, _):
        with stored.full_disk(), pytest.raises(stored.error, match="full"):
            await kept(store, PutTenant(ACME_TENANT))
        await kept(store, Barrier())
    assert ACME_TENANT not in (await stored_state(stored.location)).tenants


async def test_a_charge_is_retried_until_it_is_stored(stored):
    async with opened_store(stored.location) as (store, _):
        await kept(store, PutTenant(ACME_TENANT))
        await kept(store, Reserved(reservation(), Balance("acme")))
        with stored.full_disk():
            charging = asyncio.create_task(kept(store, charged()))
            await changed(store)
            assert not store.is_available
        await charging
        assert store.is_available
    assert (await stored_state(stored.location)).reservations == []
    assert stored.rows("SELECT requests, output_tokens FROM usage") == [(1, 7)]


async def test_charges_that_cannot_be_stored_do_not_block_the_shutdown_and_are_counted(stored, monkeypatch):
    monkeypatch.setattr(threaded, "RETRY_INTERVAL_S", 0.0)
    with pytest.raises(ChargesNotPersisted, match="1 charges were not written"):
        async with opened_store(stored.location) as (store, _):
            await kept(store, PutTenant(ACME_TENANT))
            await kept(store, Reserved(reservation(), Balance("acme")))
            disk = stored.full_disk()
            disk.__enter__()
            store.write(charged(), lambda _: None)
    disk.__exit__(None, None, None)
    assert (await stored_state(stored.location)).reservations == [reservation()]


async def test_availability_is_reported_before_the_changes_that_fail_and_after_a_probe_succeeds(stored):
    told, is_back = [], asyncio.Event()
    async with opened_store(stored.location) as (store, _):
        store.notify_availability(lambda is_available: told.append(is_available) or (is_available and is_back.set()))
        with stored.full_disk():
            store.write(PutTenant(ACME_TENANT), lambda error: told.append("full" in str(error)))
            await store.flush()
            assert told == [False, True]
            assert not store.is_available
        await is_back.wait()  # without a change to write
        assert store.is_available
        await kept(store, PutTenant(ACME_TENANT))
    assert told == [False, True, True]


async def test_the_thread_rolls_up_the_ledger(stored, monkeypatch):
    monkeypatch.setattr(threaded, "IDLE_INTERVAL_S", 0.01)
    clock = itertools.count(5 * DAY_S, 60).__next__
    async with opened_store(stored.location, retention=Retention(max_age=10.0), clock=clock) as (store, _):
        await kept(store, PutTenant(ACME_TENANT))
        for number in range(40):
            await kept(store, charged(number))
        async with asyncio.timeout(20):
            while stored.rows("SELECT count(*) FROM ledger") != [(0,)]:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.01)
    assert stored.rows("SELECT * FROM usage") == [("1970-01-01", "acme", "k", "m", 40, 400, 280, 0, 0)]


async def changed(store):
    """Wait for the next change of the availability."""
    happened = asyncio.Event()
    store.notify_availability(lambda _: happened.set())
    await happened.wait()
