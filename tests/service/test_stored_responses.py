"""The contract of stored responses."""

import pytest

from auth_server import FakeClock
from penstock.chassis.errors import Aborted, AlreadyExists, InvalidArgument, NotFound
from response_calls import (
    CANCEL_REQUESTED,
    CANCELLED,
    COMPLETED,
    HELD,
    IN_PROGRESS,
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
    read,
    response_client,
)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
async def client(tmp_path, clock):
    async with response_client(tmp_path / "auth.db", clock) as client:
        yield client


async def test_a_response_is_read_as_it_was_stored(client, clock):
    assert await client(create(request=b"question", background=True)) == 1
    assert await client(extend(progress(tokens=part(0, 3)))) == [HELD]
    (found,) = await client(read())
    assert (found.status, found.request, found.token_count, found.background) == (IN_PROGRESS, b"question", 3, True)
    assert found.created_at.seconds == clock.now
    await client(finish(tokens=part(3, 2), output=b"answer"))
    (found,) = await client(read())
    assert (found.status, found.output, found.resume) == (COMPLETED, b"answer", b"")
    assert [(each.first_index, each.count) for each in found.tokens] == [(0, 3), (3, 2)]


async def test_a_chain_is_read_oldest_first(client):
    await client(create("a", request=b"1"))
    await client(create("b", request=b"2", previous_response_id="a"))
    await client(create("c", request=b"3", previous_response_id="b"))
    assert [each.request for each in await client(chain("c"))] == [b"1", b"2", b"3"]


async def test_a_claim_gives_a_late_response_to_another_edge(client, clock):
    await client(create(background=True))
    assert await client(claim()) == []
    clock.now += 10
    (claimed,) = await client(claim())
    assert (claimed.epoch, claimed.resume) == (2, b"resume")
    assert await client(extend(progress(epoch=1))) == [LOST]
    with pytest.raises(Aborted, match="lease"):
        await client(finish(epoch=1))
    await client(finish(epoch=2))


async def test_a_cancel_reaches_the_holder(client, clock):
    await client(create())
    (found,) = await client(cancel())
    assert (found.status, found.is_cancel_requested) == (IN_PROGRESS, True)
    assert await client(extend(progress())) == [CANCEL_REQUESTED]
    await client(create("late"))
    clock.now += 10
    (found,) = await client(cancel("late"))
    assert found.status == CANCELLED


async def test_a_deleted_response_does_not_exist(client):
    await client(create())
    await client(delete())
    with pytest.raises(NotFound, match="r1"):
        await client(read())
    assert await client(extend(progress())) == [LOST]


async def test_a_create_is_idempotent(client):
    assert await client(create()) == 1
    assert await client(create()) == 1
    with pytest.raises(AlreadyExists):
        await client(create(request=b"other"))
    with pytest.raises(InvalidArgument):
        await client(create(""))
