"""The contract of stored responses, in a SQLite file and in PostgreSQL."""

import asyncio
import itertools
import random

import pytest

from penstock.auth.responses import messages
from penstock.auth.store.responses import locked, operations, upkeep
from penstock.chassis.errors import Aborted, AlreadyExists, InvalidArgument, NotFound, QuotaExceeded
from penstock.mesh.limits import bounds
from response_calls import (
    CANCEL_REQUESTED,
    CANCELLED,
    COMPLETED,
    DAY_S,
    FAILED,
    HELD,
    IN_PROGRESS,
    LEASE_S,
    LOST,
    ResponseTables,
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
    wait_longer,
)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    wait_longer(monkeypatch)


@pytest.fixture
def tables(stored):
    tables = ResponseTables(stored)
    tables.prepare()
    return tables


@pytest.fixture
async def client(tables):
    async with response_client(tables.stored.location) as client:
        yield client


def ranges(response):
    return [(each.first_index, each.count) for each in response.tokens]


async def run_upkeep(client):
    while await client.store.threads[0].run(lambda backend: backend.run_upkeep()):
        pass


# Reading what was stored.


async def test_a_response_is_read_as_it_was_stored(client):
    assert await client(create(request=b"question", background=True)) == 1
    assert await client(extend(progress(tokens=part(0, 3)))) == [HELD]
    (found,) = await client(read())
    assert (found.status, found.request, found.token_count, found.background) == (IN_PROGRESS, b"question", 3, True)
    assert (found.key.tenant_id, found.key.response_id, found.epoch, found.resume) == ("acme", "r1", 1, b"")
    assert found.created_at.seconds > 0
    await client(finish(tokens=part(3, 2), output=b"answer"))
    (found,) = await client(read())
    assert (found.status, found.output, found.token_count) == (COMPLETED, b"answer", 5)
    assert ranges(found) == [(0, 3), (3, 2)]
    assert b"".join(each.sealed for each in found.tokens) == b"ttttt"


async def test_a_reader_gets_the_parts_from_an_index_on(client):
    await client(create())
    for first in range(0, 9, 3):
        await client(extend(progress(tokens=part(first, 3))))
    for is_finished in (False, True):
        if is_finished:
            await client(finish())
        for from_index, expected in ((0, [0, 3, 6]), (2, [0, 3, 6]), (3, [3, 6]), (8, [6]), (9, []), (100, [])):
            (found,) = await client(read(from_index=from_index, state_only=True))
            assert [each.first_index for each in found.tokens] == expected
            assert (found.request, found.output) == (b"", b"")


async def test_a_long_output_is_read_in_several_results(client, monkeypatch):
    monkeypatch.setattr(messages, "MAX_TOKENS_BYTES", 5)
    await client(create())
    for first in range(0, 9, 3):
        await client(extend(progress(tokens=part(first, 3))))
    await client(finish(tokens=part(9, 20)))
    seen, index = [], 0
    while index < 29:
        (found,) = await client(read(from_index=index, state_only=True))
        assert found.token_count == 29
        seen += ranges(found)
        index = sum(seen[-1])
    assert seen == [(0, 3), (3, 3), (6, 3), (9, 20)]


async def test_the_parts_of_an_ended_response_are_merged_into_few_rows(client, tables, monkeypatch):
    monkeypatch.setattr(locked, "MERGED_BYTES", 100)
    await client(create())
    for index in range(50):
        await client(extend(progress(tokens=part(index, 1, b"%d" % (index % 10)))))
    assert tables.token_rows() == 50
    before = tables.counted()
    await client(finish(output=b""))
    assert tables.token_rows() < 10
    (found,) = await client(read())
    assert [each.sealed for each in found.tokens] == [b"%d" % (index % 10) for index in range(50)]
    assert before["acme"][0] - tables.counted()["acme"][0] == len(b"resume")
    for index in range(50):
        (found,) = await client(read(from_index=index))
        assert ranges(found) == [(each, 1) for each in range(index, 50)]


async def test_what_resumes_a_response_is_erased_when_it_ends(client, tables):
    await client(create())
    await client(create("r2", lease_s=0))
    assert tables.kinds() == ["request", "request", "resume", "resume"]
    await client(finish())
    assert tables.kinds() == ["output", "request", "request", "resume"]
    await client(cancel("r2"))
    assert tables.kinds() == ["output", "request", "request"]


# Creating and finishing again.


async def test_a_create_is_idempotent_until_the_response_is_extended(client):
    assert await client(create()) == 1
    assert await client(create()) == 1
    with pytest.raises(AlreadyExists) as error:
        await client(create(request=b"other"))
    assert error.value.reason == "RESPONSE_EXISTS"
    await client(extend(progress(tokens=part(0, 1))))
    with pytest.raises(AlreadyExists):
        await client(create())


async def test_a_create_names_what_is_wrong(client):
    for wrong in (create(""), create(tenant_id="")):
        with pytest.raises(InvalidArgument, match="tenant and an id"):
            await client(wrong)
    with pytest.raises(NotFound, match="'gone'") as error:
        await client(create(previous_response_id="gone"))
    assert error.value.reason == "RESPONSE_UNKNOWN"
    with pytest.raises(InvalidArgument, match="no operation"):
        await client({})


async def test_a_finish_is_idempotent(client, tables):
    await client(create())
    for _ in range(3):
        await client(finish(tokens=part(0, 4)))
    (found,) = await client(read())
    assert ranges(found) == [(0, 4)]
    for other in (finish(status=FAILED), finish(epoch=2), finish(epoch=0)):
        with pytest.raises(Aborted) as error:
            await client(other)
        assert error.value.reason == "RESPONSE_LOST"
    tables.check_counts()


@pytest.mark.parametrize("status", [0, IN_PROGRESS])
async def test_a_response_ends_in_a_final_state(client, status):
    await client(create())
    with pytest.raises(InvalidArgument, match="final state"):
        await client(finish(status=status))


# Tokens.


async def test_tokens_that_are_stored_are_ignored_and_replaced_by_a_longer_part(client, tables):
    await client(create())
    await client(extend(progress(tokens=part(0, 3, b"a"))))
    await client(extend(progress(tokens=part(3, 3, b"b"))))
    assert (
        await client(extend(progress(tokens=part(3, 3, b"x")), progress("r1", tokens=part(0, 2, b"x")))) == [HELD] * 2
    )
    assert await client(extend(progress(tokens=part(3, 5, b"c")))) == [HELD]
    (found,) = await client(read())
    assert [each.sealed for each in found.tokens] == [b"aaa", b"ccccc"]
    tables.check_counts()


@pytest.mark.parametrize("first_index", [1, 5])
async def test_tokens_after_missing_ones_or_from_the_middle_of_a_part_release_the_lease(client, first_index):
    await client(create(background=True))
    await client(extend(progress(tokens=part(0, 4))))
    with pytest.raises(Aborted):
        await client(finish(tokens=part(first_index, 10)))
    assert await client(extend(progress(tokens=part(first_index, 10)))) == [LOST]
    (claimed,) = await client(claim())
    assert (claimed.epoch, ranges(claimed)) == (2, [(0, 4)])


# Leases.


async def test_a_former_holder_changes_nothing(client, tables):
    await client(create(background=True))
    await client(extend(progress(tokens=part(0, 2, b"a"))))
    tables.pass_time(LEASE_S)
    (claimed,) = await client(claim())
    assert (claimed.epoch, claimed.request, claimed.resume, ranges(claimed)) == (2, b"request", b"resume", [(0, 2)])
    assert await client(extend(progress(epoch=1, tokens=part(2, 2, b"x")))) == [LOST]
    assert await client(extend(progress(epoch=1, release=True))) == [LOST]
    with pytest.raises(Aborted):
        await client(finish(epoch=1, tokens=part(2, 2, b"x")))
    assert await client(extend(progress(epoch=2, tokens=part(2, 1, b"b")))) == [HELD]
    await client(finish(epoch=2, output=b"second"))
    with pytest.raises(Aborted):
        await client(finish(epoch=1, output=b"first"))
    assert await client(extend(progress(epoch=2))) == [LOST]
    (found,) = await client(read())
    assert (found.output, [each.sealed for each in found.tokens]) == (b"second", [b"aa", b"b"])
    tables.check_counts()


async def test_a_late_holder_keeps_a_response_that_nobody_claimed(client, tables):
    await client(create())
    tables.pass_time(LEASE_S)
    (found,) = await client(read())
    assert found.is_claimable
    assert await client(extend(progress())) == [HELD]
    (found,) = await client(read())
    assert not found.is_claimable


async def test_a_released_response_is_claimed_at_once(client):
    await client(create(background=True))
    assert await client(claim()) == []
    assert await client(extend(progress(tokens=part(0, 2), release=True))) == [HELD]
    (claimed,) = await client(claim())
    assert (claimed.epoch, claimed.token_count) == (2, 2)


async def test_a_response_in_the_foreground_is_claimed_by_its_key_alone(client, tables):
    await client(create())
    assert await client(claim("r1")) == []
    tables.pass_time(LEASE_S)
    assert await client(claim()) == []
    (claimed,) = await client(claim("r1"))
    assert claimed.epoch == 2
    await client(finish(epoch=2))
    tables.pass_time(LEASE_S)
    assert await client(claim("r1")) == []
    with pytest.raises(NotFound):
        await client(claim("unknown"))


async def test_each_response_is_claimed_by_one_of_several_edges(tables):
    async with response_client(tables.stored.location) as client:
        for number in range(30):
            await client(create(f"r{number}", background=True, lease_s=0))
        calls = [client.start(claim(limit=4)) for _ in range(12)]
        if tables.stored.location.startswith("postgres"):  # replicas
            async with response_client(tables.stored.location) as other:
                calls += [other.start(claim(limit=4)) for _ in range(12)]
                await asyncio.gather(*calls)
        claimed = [each.key.response_id for found in await asyncio.gather(*calls) for each in found]
        claimed += [each.key.response_id for each in await client(claim(limit=30))]
        assert sorted(claimed) == sorted(f"r{number}" for number in range(30))


async def test_a_claim_has_a_bounded_size_and_one_response_at_least(client, monkeypatch):
    monkeypatch.setattr(operations, "MAX_CLAIMED_BYTES", 3_000)
    for number in range(4):
        await client(create(f"r{number}", background=True, lease_s=0, request=b"x" * 1_000))
    await client(create("large", background=True, lease_s=0, request=b"x" * 9_000))
    sizes = []
    while found := await client(claim()):
        sizes.append(len(found))
    assert sum(sizes) == 5
    assert max(sizes) == 1


async def test_many_leases_are_renewed_by_one_call(client):
    names = [f"r{number}" for number in range(200)]
    for each in names:
        await client(create(each, tenant_id=f"tenant-{len(each)}"))
    entries = [progress(each, tokens=part(0, 2), tenant_id=f"tenant-{len(each)}") for each in names]
    assert await client(extend(*entries, progress("unknown"))) == [HELD] * 200 + [LOST]


# Cancelling and deleting.


async def test_a_cancel_reaches_the_holder(client):
    await client(create())
    (found,) = await client(cancel())
    assert (found.status, found.is_cancel_requested) == (IN_PROGRESS, True)
    assert await client(extend(progress(tokens=part(0, 1)))) == [CANCEL_REQUESTED]
    await client(finish(status=CANCELLED))
    (found,) = await client(cancel())
    assert (found.status, found.is_cancel_requested, found.output) == (CANCELLED, False, b"output")


async def test_a_cancel_without_a_holder_ends_the_response(client, tables):
    await client(create(lease_s=0))
    (found,) = await client(cancel())
    assert (found.status, found.output) == (CANCELLED, b"")
    assert await client(extend(progress())) == [LOST]
    for status in (COMPLETED, CANCELLED):
        with pytest.raises(Aborted):
            await client(finish(status=status))
    tables.check_counts()


async def test_a_holder_that_dies_after_the_request_to_cancel_leaves_a_cancelled_response(client, tables):
    for name in ("r1", "r2", "r3"):
        await client(create(name, background=True))
        await client(cancel(name))
    tables.pass_time(LEASE_S)
    (found,) = await client(read())
    assert (found.status, found.is_claimable) == (CANCELLED, False)
    assert await client(claim("r2")) == []
    assert await client(extend(progress("r3"))) == [LOST]
    assert await client(claim()) == []
    await run_upkeep(client)
    assert tables.kinds() == ["request"] * 3
    tables.check_counts()


async def test_a_cancel_changes_nothing_after_the_end(client):
    await client(create())
    await client(finish())
    (found,) = await client(cancel())
    assert (found.status, found.output) == (COMPLETED, b"output")


async def test_a_deleted_response_does_not_exist(client, tables):
    await client(create())
    await client(extend(progress(tokens=part(0, 2))))
    await client(delete())
    for each in (read(), chain(), cancel(), delete(), claim("r1"), finish()):
        with pytest.raises(NotFound, match="'r1'"):
            await client(each)
    assert await client(extend(progress())) == [LOST]
    assert tables.check_counts() == {}
    assert (tables.kinds(), tables.token_rows()) == ([], 0)


async def test_a_response_of_another_tenant_does_not_exist(client):
    await client(create(background=True))
    await client(create("r1", tenant_id="other", request=b"theirs"))
    for each in (read, chain, cancel, delete):
        with pytest.raises(NotFound) as error:
            await client(each("r1", tenant_id="third"))
        assert error.value.reason == "RESPONSE_UNKNOWN"
    for each in (finish("r1", tenant_id="third"), claim("r1", tenant_id="third")):
        with pytest.raises(NotFound):
            await client(each)
    with pytest.raises(NotFound):
        await client(create("r2", tenant_id="third", previous_response_id="r1"))
    assert await client(extend(progress(tenant_id="third"))) == [LOST]
    (found,) = await client(read("r1", tenant_id="other"))
    assert found.request == b"theirs"


@pytest.mark.parametrize("name", ["a\0b", "\0", "é" * 256, "' OR 1=1 --", "\ud7ff\U0010ffff"])
async def test_every_name_is_a_name(client, name):
    with pytest.raises(NotFound):
        await client(read(name))
    if "\0" not in name:
        await client(create(name))
        (found,) = await client(chain(name))
        assert found.key.response_id == name


# Conversations.


async def test_a_chain_is_read_oldest_first(client):
    await client(create("a", request=b"1"))
    await client(finish("a", tokens=part(0, 2)))
    await client(create("b", request=b"2", previous_response_id="a"))
    await client(create("c", request=b"3", previous_response_id="b"))
    await client(create("side", request=b"4", previous_response_id="a"))
    found = await client(chain("c"))
    assert [each.request for each in found] == [b"1", b"2", b"3"]
    assert [each.status for each in found] == [COMPLETED, IN_PROGRESS, IN_PROGRESS]
    assert [each.output for each in found] == [b"output", b"", b""]
    assert not any(each.tokens or each.resume for each in found)


async def test_a_missing_link_is_named(client):
    await client(create("a"))
    await client(create("b", previous_response_id="a"))
    await client(create("c", previous_response_id="b"))
    await client(delete("a"))
    for latest in ("b", "c"):
        with pytest.raises(NotFound, match="'a'"):
            await client(chain(latest))
    with pytest.raises(NotFound, match="'unknown'"):
        await client(chain("unknown"))


async def test_a_conversation_has_a_bounded_size(client, monkeypatch):
    monkeypatch.setattr(bounds, "CHAINED", 3)
    names = ["", "a", "b", "c", "d"]
    for previous, name in itertools.pairwise(names):
        await client(create(name, previous_response_id=previous, request=b"x" * 10))
    assert len(await client(chain("c"))) == 3
    with pytest.raises(InvalidArgument) as error:
        await client(chain("d"))
    assert error.value.reason == "CONTEXT_TOO_LARGE"
    monkeypatch.setattr(bounds, "CHAIN_BYTES", 29)
    assert len(await client(chain("b"))) == 2
    with pytest.raises(InvalidArgument):
        await client(chain("c"))


async def test_a_cycle_that_a_reused_id_makes_is_no_conversation(client, monkeypatch):
    monkeypatch.setattr(bounds, "CHAINED", 20)
    await client(create("a"))
    await client(create("b", previous_response_id="a"))
    await client(delete("a"))
    await client(create("a", previous_response_id="b"))
    with pytest.raises(InvalidArgument):
        await client(chain("a"))


# Time to live.


async def test_a_response_expires_after_its_time_to_live(client, tables):
    await client(create("ended"))
    await client(finish("ended", tokens=part(0, 5)))
    await client(create("held", lease_s=40 * DAY_S))
    await client(create("late"))
    tables.pass_time(30 * DAY_S - 60)
    await run_upkeep(client)
    assert tables.counted()["acme"][1] == 3
    tables.pass_time(120)
    await run_upkeep(client)
    assert tables.counted()["acme"][1] == 1
    await client(read("held"))
    tables.check_counts()
    tables.pass_time(11 * DAY_S)
    await run_upkeep(client)
    assert (tables.counted(), tables.kinds(), tables.token_rows()) == ({}, [], 0)


async def test_a_conversation_lives_as_long_as_its_latest_use(client, tables):
    await client(create("a"))
    await client(create("b", previous_response_id="a"))
    await client(create("other"))
    for name in ("a", "b", "other"):
        await client(finish(name))
    tables.pass_time(20 * DAY_S)
    assert len(await client(chain("b"))) == 2
    tables.pass_time(20 * DAY_S)
    await run_upkeep(client)
    assert len(await client(chain("b"))) == 2
    with pytest.raises(NotFound):
        await client(read("other"))


async def test_many_expired_responses_are_deleted_in_slices(client, tables):
    for number in range(3 * upkeep.SLICE_RESPONSES + 1):
        await client(create(f"r{number}", lease_s=0))
    tables.pass_time(31 * DAY_S)
    slices = [await client.store.threads[0].run(lambda backend: backend.run_upkeep()) for _ in range(4)]
    assert slices == [True, True, True, False]
    assert tables.counted() == {}


# Bytes.


async def test_a_tenant_stores_no_more_bytes_than_it_may(tables):
    async with response_client(tables.stored.location, bytes_per_tenant=2_000) as client:
        await client(create("a", request=b"x" * 488, resume=b""))
        await client(create("b", request=b"x" * 488, resume=b""))
        with pytest.raises(QuotaExceeded, match="PENSTOCK_AUTH_RESPONSE_BYTES_PER_TENANT") as error:
            await client(create("c", request=b"", resume=b""))
        assert error.value.reason == "RESPONSES_FULL"
        await client(create("c", tenant_id="other", request=b"x" * 1_000))
        await client(finish("a", output=b"y" * 500))  # what is stored is completed
        await client(delete("a"))
        await client(create("c", request=b"x" * 488, resume=b""))
        tables.check_counts()


async def test_without_bytes_no_tenant_stores_anything(tables):
    async with response_client(tables.stored.location, bytes_per_tenant=0) as client:
        with pytest.raises(QuotaExceeded, match="store: false"):
            await client(create(request=b"", resume=b""))


async def test_the_bytes_of_tenants_are_exact_after_any_calls(tables):
    rng = random.Random(1)
    async with response_client(tables.stored.location, bytes_per_tenant=20_000) as client:
        for _ in range(25):
            calls = [client.start(random_call(rng)) for _ in range(rng.choice([1, 5, 20]))]
            await asyncio.gather(*calls, return_exceptions=True)
            tables.pass_time(rng.choice([0, 0, LEASE_S]))
            if rng.random() < 0.1:
                tables.pass_time(16 * DAY_S)
                await run_upkeep(client)
            tables.check_counts()


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


async def test_the_responses_of_a_tenant_are_deleted_with_it(client, tables):
    for number in range(upkeep.SLICE_RESPONSES + 2):
        await client(create(f"r{number}"))
    await client(create("r1", tenant_id="other"))
    await client.store.delete_of_tenant("acme")
    assert list(tables.check_counts()) == ["other"]
    assert tables.run("SELECT tenant_id FROM response_usage") == [("other",)]


async def test_what_is_stored_is_reported(client):
    await client(create(request=b"12345", resume=b"678"))
    totals = await client.store.threads[0].run(lambda backend: backend.totals())
    assert totals == (locked.RESPONSE_BYTES + 8, 1)
    client.store.on_totals(totals)
    assert client.store.figures["stored_responses"] == 1
    assert client.store.figures["stored_response_bytes"] == locked.RESPONSE_BYTES + 8
