"""Leases of stored responses, in a SQLite file and in PostgreSQL: one edge holds a response, and cancels reach it."""

import asyncio

import pytest

from penstock.auth.store.responses import operations
from penstock.chassis.errors import Aborted, NotFound
from response_calls import (
    CANCEL_REQUESTED,
    CANCELLED,
    COMPLETED,
    HELD,
    IN_PROGRESS,
    LEASE_S,
    LOST,
    cancel,
    chain,
    claim,
    create,
    delete,
    extend,
    finish,
    part,
    progress,
    ranges,
    read,
    response_client,
    run_upkeep,
)


async def test_a_former_holder_changes_nothing(call_store, response_tables):
    await call_store(create(background=True))
    await call_store(extend(progress(tokens=part(0, 2, b"a"))))
    response_tables.pass_time(LEASE_S)
    (claimed,) = await call_store(claim())
    assert (claimed.epoch, claimed.request, claimed.resume, ranges(claimed)) == (2, b"request", b"resume", [(0, 2)])
    assert await call_store(extend(progress(epoch=1, tokens=part(2, 2, b"x")))) == [LOST]
    assert await call_store(extend(progress(epoch=1, release=True))) == [LOST]
    with pytest.raises(Aborted):
        await call_store(finish(epoch=1, tokens=part(2, 2, b"x")))
    assert await call_store(extend(progress(epoch=2, tokens=part(2, 1, b"b")))) == [HELD]
    await call_store(finish(epoch=2, output=b"second"))
    with pytest.raises(Aborted):
        await call_store(finish(epoch=1, output=b"first"))
    assert await call_store(extend(progress(epoch=2))) == [LOST]
    (found,) = await call_store(read())
    assert (found.output, [each.sealed for each in found.tokens]) == (b"second", [b"aa", b"b"])
    response_tables.check_counts()


async def test_a_late_holder_keeps_a_response_that_nobody_claimed(call_store, response_tables):
    await call_store(create())
    response_tables.pass_time(LEASE_S)
    (found,) = await call_store(read())
    assert found.is_claimable
    assert await call_store(extend(progress())) == [HELD]
    (found,) = await call_store(read())
    assert not found.is_claimable


async def test_a_released_response_is_claimed_at_once(call_store):
    await call_store(create(background=True))
    assert await call_store(claim()) == []
    assert await call_store(extend(progress(tokens=part(0, 2), release=True))) == [HELD]
    (claimed,) = await call_store(claim())
    assert (claimed.epoch, claimed.token_count) == (2, 2)


async def test_a_response_in_the_foreground_is_claimed_by_its_key_alone(call_store, response_tables):
    await call_store(create())
    assert await call_store(claim("r1")) == []
    response_tables.pass_time(LEASE_S)
    assert await call_store(claim()) == []
    (claimed,) = await call_store(claim("r1"))
    assert claimed.epoch == 2
    await call_store(finish(epoch=2))
    response_tables.pass_time(LEASE_S)
    assert await call_store(claim("r1")) == []
    with pytest.raises(NotFound):
        await call_store(claim("unknown"))


async def test_each_response_is_claimed_by_one_of_several_edges(response_tables):
    async with response_client(response_tables.stored.location) as client:
        for number in range(30):
            await client(create(f"r{number}", background=True, lease_s=0))
        calls = [client.start(claim(limit=4)) for _ in range(12)]
        if response_tables.stored.location.startswith("postgres"):  # replicas
            async with response_client(response_tables.stored.location) as other:
                calls += [other.start(claim(limit=4)) for _ in range(12)]
                await asyncio.gather(*calls)
        claimed = [each.key.response_id for found in await asyncio.gather(*calls) for each in found]
        claimed += [each.key.response_id for each in await client(claim(limit=30))]
        assert sorted(claimed) == sorted(f"r{number}" for number in range(30))


async def test_a_claim_has_a_bounded_size_and_one_response_at_least(call_store, monkeypatch):
    monkeypatch.setattr(operations, "MAX_CLAIMED_BYTES", 3_000)
    for number in range(4):
        await call_store(create(f"r{number}", background=True, lease_s=0, request=b"x" * 1_000))
    await call_store(create("large", background=True, lease_s=0, request=b"x" * 9_000))
    sizes = []
    while found := await call_store(claim()):
        sizes.append(len(found))
    assert sum(sizes) == 5
    assert max(sizes) == 1


async def test_many_leases_are_renewed_by_one_call(call_store):
    names = [f"r{number}" for number in range(200)]
    for each in names:
        await call_store(create(each, tenant_id=f"tenant-{len(each)}"))
    entries = [progress(each, tokens=part(0, 2), tenant_id=f"tenant-{len(each)}") for each in names]
    assert await call_store(extend(*entries, progress("unknown"))) == [HELD] * 200 + [LOST]


async def test_a_cancel_reaches_the_holder(call_store):
    await call_store(create())
    (found,) = await call_store(cancel())
    assert (found.status, found.is_cancel_requested) == (IN_PROGRESS, True)
    assert await call_store(extend(progress(tokens=part(0, 1)))) == [CANCEL_REQUESTED]
    await call_store(finish(status=CANCELLED))
    (found,) = await call_store(cancel())
    assert (found.status, found.is_cancel_requested, found.output) == (CANCELLED, False, b"output")


async def test_a_cancel_without_a_holder_ends_the_response(call_store, response_tables):
    await call_store(create(lease_s=0))
    (found,) = await call_store(cancel())
    assert (found.status, found.output) == (CANCELLED, b"")
    assert await call_store(extend(progress())) == [LOST]
    for status in (COMPLETED, CANCELLED):
        with pytest.raises(Aborted):
            await call_store(finish(status=status))
    response_tables.check_counts()


async def test_a_holder_that_dies_after_the_request_to_cancel_leaves_a_cancelled_response(call_store, response_tables):
    for name in ("r1", "r2", "r3"):
        await call_store(create(name, background=True))
        await call_store(cancel(name))
    response_tables.pass_time(LEASE_S)
    (found,) = await call_store(read())
    assert (found.status, found.is_claimable) == (CANCELLED, False)
    assert await call_store(claim("r2")) == []
    assert await call_store(extend(progress("r3"))) == [LOST]
    assert await call_store(claim()) == []
    await run_upkeep(call_store)
    assert response_tables.kinds() == ["request"] * 3
    response_tables.check_counts()


async def test_a_cancel_changes_nothing_after_the_end(call_store):
    await call_store(create())
    await call_store(finish())
    (found,) = await call_store(cancel())
    assert (found.status, found.output) == (COMPLETED, b"output")


async def test_a_deleted_response_does_not_exist(call_store, response_tables):
    await call_store(create())
    await call_store(extend(progress(tokens=part(0, 2))))
    await call_store(delete())
    for each in (read(), chain(), cancel(), delete(), claim("r1"), finish()):
        with pytest.raises(NotFound, match="'r1'"):
            await call_store(each)
    assert await call_store(extend(progress())) == [LOST]
    assert response_tables.check_counts() == {}
    assert (response_tables.kinds(), response_tables.token_rows()) == ([], 0)


async def test_a_response_of_another_tenant_does_not_exist(call_store):
    await call_store(create(background=True))
    await call_store(create("r1", tenant_id="other", request=b"theirs"))
    for each in (read, chain, cancel, delete):
        with pytest.raises(NotFound) as error:
            await call_store(each("r1", tenant_id="third"))
        assert error.value.reason == "RESPONSE_UNKNOWN"
    for each in (finish("r1", tenant_id="third"), claim("r1", tenant_id="third")):
        with pytest.raises(NotFound):
            await call_store(each)
    with pytest.raises(NotFound):
        await call_store(create("r2", tenant_id="third", previous_response_id="r1"))
    assert await call_store(extend(progress(tenant_id="third"))) == [LOST]
    (found,) = await call_store(read("r1", tenant_id="other"))
    assert found.request == b"theirs"


@pytest.mark.parametrize("name", ["a\0b", "\0", "é" * 256, "' OR 1=1 --", "\ud7ff\U0010ffff"])
async def test_every_name_is_a_name(call_store, name):
    with pytest.raises(NotFound):
        await call_store(read(name))
    if "\0" not in name:
        await call_store(create(name))
        (found,) = await call_store(chain(name))
        assert found.key.response_id == name
