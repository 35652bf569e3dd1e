"""Limits of stored responses, in a SQLite file and in PostgreSQL: their time to live, and the bytes of a tenant."""

import asyncio
import random

import pytest

from penstock.auth.store.responses import locked, upkeep
from penstock.chassis.errors import NotFound, QuotaExceeded
from response_calls import (
    COMPLETED,
    DAY_S,
    FAILED,
    LEASE_S,
    cancel,
    chain,
    claim,
    create,
    delete,
    extend,
    finish,
    part,
    progress,
    read,
    response_client,
    run_upkeep,
)


async def test_a_response_expires_after_its_time_to_live(call_store, response_tables):
    await call_store(create("ended"))
    await call_store(finish("ended", tokens=part(0, 5)))
    await call_store(create("held", lease_s=40 * DAY_S))
    await call_store(create("late"))
    response_tables.pass_time(30 * DAY_S - 60)
    await run_upkeep(call_store)
    assert response_tables.counted()["acme"][1] == 3
    response_tables.pass_time(120)
    await run_upkeep(call_store)
    assert response_tables.counted()["acme"][1] == 1
    await call_store(read("held"))
    response_tables.check_counts()
    response_tables.pass_time(11 * DAY_S)
    await run_upkeep(call_store)
    assert (response_tables.counted(), response_tables.kinds(), response_tables.token_rows()) == ({}, [], 0)


async def test_a_conversation_lives_as_long_as_its_latest_use(call_store, response_tables):
    await call_store(create("a"))
    await call_store(create("b", previous_response_id="a"))
    await call_store(create("other"))
    for name in ("a", "b", "other"):
        await call_store(finish(name))
    response_tables.pass_time(20 * DAY_S)
    assert len(await call_store(chain("b"))) == 2
    response_tables.pass_time(20 * DAY_S)
    await run_upkeep(call_store)
    assert len(await call_store(chain("b"))) == 2
    with pytest.raises(NotFound):
        await call_store(read("other"))


async def test_many_expired_responses_are_deleted_in_slices(call_store, response_tables):
    for number in range(3 * upkeep.SLICE_RESPONSES + 1):
        await call_store(create(f"r{number}", lease_s=0))
    response_tables.pass_time(31 * DAY_S)
    slices = [await call_store.store.threads[0].run(lambda backend: backend.run_upkeep()) for _ in range(4)]
    assert slices == [True, True, True, False]
    assert response_tables.counted() == {}


async def test_a_tenant_stores_no_more_bytes_than_it_may(response_tables):
    async with response_client(response_tables.stored.location, bytes_per_tenant=2_000) as client:
        await client(create("a", request=b"x" * 488, resume=b""))
        await client(create("b", request=b"x" * 488, resume=b""))
        with pytest.raises(QuotaExceeded, match="PENSTOCK_AUTH_RESPONSE_BYTES_PER_TENANT") as error:
            await client(create("c", request=b"", resume=b""))
        assert error.value.reason == "RESPONSES_FULL"
        await client(create("c", tenant_id="other", request=b"x" * 1_000))
        await client(finish("a", output=b"y" * 500))  # what is stored is completed
        await client(delete("a"))
        await client(create("c", request=b"x" * 488, resume=b""))
        response_tables.check_counts()


async def test_without_bytes_no_tenant_stores_anything(response_tables):
    async with response_client(response_tables.stored.location, bytes_per_tenant=0) as client:
        with pytest.raises(QuotaExceeded, match="store: false"):
            await client(create(request=b"", resume=b""))


async def test_the_bytes_of_tenants_are_exact_after_any_calls(response_tables):
    rng = random.Random(1)
    async with response_client(response_tables.stored.location, bytes_per_tenant=20_000) as client:
        for _ in range(25):
            calls = [client.start(random_call(rng)) for _ in range(rng.choice([1, 5, 20]))]
            await asyncio.gather(*calls, return_exceptions=True)
            response_tables.pass_time(rng.choice([0, 0, LEASE_S]))
            if rng.random() < 0.1:
                response_tables.pass_time(16 * DAY_S)
                await run_upkeep(client)
            response_tables.check_counts()


def random_call(rng):
    name, tenant, epoch = f"r{rng.randrange(8)}", rng.choice(["acme", "other"]), rng.choice([1, 1, 1, 2, 3])
    size = rng.randrange(3_000)
    first = rng.randrange(4)
    tokens = part(first, rng.randrange(1, 5))
    match rng.randrange(9):
        case 0 | 1 | 2:
            return create(name, tenant_id=tenant, request=b"q" * size, background=rng.random() < 0.5)
        case 3 | 4:
            names = rng.sample(range(8), 3)
            return extend(*(progress(f"r{each}", epoch, tokens, tenant_id=tenant) for each in names))
        case 5:
            return finish(name, epoch, rng.choice([COMPLETED, FAILED]), tokens, b"a" * size, tenant_id=tenant)
        case 6:
            return delete(name, tenant_id=tenant)
        case 7:
            return cancel(name, tenant_id=tenant)
        case _:
            return claim(rng.choice(["", name]), tenant_id=tenant)


async def test_the_responses_of_a_tenant_are_deleted_with_it(call_store, response_tables):
    for number in range(upkeep.SLICE_RESPONSES + 2):
        await call_store(create(f"r{number}"))
    await call_store(create("r1", tenant_id="other"))
    await call_store.store.delete_of_tenant("acme")
    assert list(response_tables.check_counts()) == ["other"]
    assert response_tables.run("SELECT tenant_id FROM response_usage") == [("other",)]


async def test_what_is_stored_is_reported(call_store):
    await call_store(create(request=b"12345", resume=b"678"))
    totals = await call_store.store.threads[0].run(lambda backend: backend.totals())
    assert totals == (locked.RESPONSE_BYTES + 8, 1)
    call_store.store.on_totals(totals)
    assert call_store.store.figures["stored_responses"] == 1
    assert call_store.store.figures["stored_response_bytes"] == locked.RESPONSE_BYTES + 8
