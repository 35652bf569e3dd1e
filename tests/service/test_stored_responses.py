"""Stored responses, in a SQLite file and in PostgreSQL: what is stored is read, and a repeated call changes nothing."""

import itertools

import pytest

from penstock.auth.responses import messages
from penstock.auth.store.responses import locked
from penstock.chassis.errors import Aborted, AlreadyExists, InvalidArgument, NotFound
from penstock.mesh.limits import bounds
from response_calls import (
    COMPLETED,
    FAILED,
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
    ranges,
    read,
)


async def test_a_response_is_read_as_it_was_stored(call_store):
    assert await call_store(create(request=b"question", background=True)) == 1
    assert await call_store(extend(progress(tokens=part(0, 3)))) == [HELD]
    (found,) = await call_store(read())
    assert (found.status, found.request, found.token_count, found.background) == (IN_PROGRESS, b"question", 3, True)
    assert (found.key.tenant_id, found.key.response_id, found.epoch, found.resume) == ("acme", "r1", 1, b"")
    assert found.created_at.seconds > 0
    await call_store(finish(tokens=part(3, 2), output=b"answer"))
    (found,) = await call_store(read())
    assert (found.status, found.output, found.token_count) == (COMPLETED, b"answer", 5)
    assert ranges(found) == [(0, 3), (3, 2)]
    assert b"".join(each.sealed for each in found.tokens) == b"ttttt"


async def test_a_reader_gets_the_parts_from_an_index_on(call_store):
    await call_store(create())
    for first in range(0, 9, 3):
        await call_store(extend(progress(tokens=part(first, 3))))
    for is_finished in (False, True):
        if is_finished:
            await call_store(finish())
        for from_index, expected in ((0, [0, 3, 6]), (2, [0, 3, 6]), (3, [3, 6]), (8, [6]), (9, []), (100, [])):
            (found,) = await call_store(read(from_index=from_index, state_only=True))
            assert [each.first_index for each in found.tokens] == expected
            assert (found.request, found.output) == (b"", b"")


async def test_a_long_output_is_read_in_several_results(call_store, monkeypatch):
    monkeypatch.setattr(messages, "MAX_TOKENS_BYTES", 5)
    await call_store(create())
    for first in range(0, 9, 3):
        await call_store(extend(progress(tokens=part(first, 3))))
    await call_store(finish(tokens=part(9, 20)))
    seen, index = [], 0
    while index < 29:
        (found,) = await call_store(read(from_index=index, state_only=True))
        assert found.token_count == 29
        seen += ranges(found)
        index = sum(seen[-1])
    assert seen == [(0, 3), (3, 3), (6, 3), (9, 20)]


async def test_the_parts_of_an_ended_response_are_merged_into_few_rows(call_store, response_tables, monkeypatch):
    monkeypatch.setattr(locked, "MERGED_BYTES", 100)
    await call_store(create())
    for index in range(50):
        await call_store(extend(progress(tokens=part(index, 1, b"%d" % (index % 10)))))
    assert response_tables.token_rows() == 50
    before = response_tables.counted()
    await call_store(finish(output=b""))
    assert response_tables.token_rows() < 10
    (found,) = await call_store(read())
    assert [each.sealed for each in found.tokens] == [b"%d" % (index % 10) for index in range(50)]
    assert before["acme"][0] - response_tables.counted()["acme"][0] == len(b"resume")
    for index in range(50):
        (found,) = await call_store(read(from_index=index))
        assert ranges(found) == [(each, 1) for each in range(index, 50)]


async def test_what_resumes_a_response_is_erased_when_it_ends(call_store, response_tables):
    await call_store(create())
    await call_store(create("r2", lease_s=0))
    assert response_tables.kinds() == ["request", "request", "resume", "resume"]
    await call_store(finish())
    assert response_tables.kinds() == ["output", "request", "request", "resume"]
    await call_store(cancel("r2"))
    assert response_tables.kinds() == ["output", "request", "request"]


async def test_a_create_is_idempotent_until_the_response_is_extended(call_store):
    assert await call_store(create()) == 1
    assert await call_store(create()) == 1
    with pytest.raises(AlreadyExists) as error:
        await call_store(create(request=b"other"))
    assert error.value.reason == "RESPONSE_EXISTS"
    await call_store(extend(progress(tokens=part(0, 1))))
    with pytest.raises(AlreadyExists):
        await call_store(create())


async def test_a_create_names_what_is_wrong(call_store):
    for wrong in (create(""), create(tenant_id="")):
        with pytest.raises(InvalidArgument, match="tenant and an id"):
            await call_store(wrong)
    with pytest.raises(NotFound, match="'gone'") as error:
        await call_store(create(previous_response_id="gone"))
    assert error.value.reason == "RESPONSE_UNKNOWN"
    with pytest.raises(InvalidArgument, match="no operation"):
        await call_store({})


async def test_a_finish_is_idempotent(call_store, response_tables):
    await call_store(create())
    for _ in range(3):
        await call_store(finish(tokens=part(0, 4)))
    (found,) = await call_store(read())
    assert ranges(found) == [(0, 4)]
    for other in (finish(status=FAILED), finish(epoch=2), finish(epoch=0)):
        with pytest.raises(Aborted) as error:
            await call_store(other)
        assert error.value.reason == "RESPONSE_LOST"
    response_tables.check_counts()


@pytest.mark.parametrize("status", [0, IN_PROGRESS])
async def test_a_response_ends_in_a_final_state(call_store, status):
    await call_store(create())
    with pytest.raises(InvalidArgument, match="final state"):
        await call_store(finish(status=status))


async def test_tokens_that_are_stored_are_ignored_and_replaced_by_a_longer_part(call_store, response_tables):
    await call_store(create())
    await call_store(extend(progress(tokens=part(0, 3, b"a"))))
    await call_store(extend(progress(tokens=part(3, 3, b"b"))))
    assert (
        await call_store(extend(progress(tokens=part(3, 3, b"x")), progress("r1", tokens=part(0, 2, b"x"))))
        == [HELD] * 2
    )
    assert await call_store(extend(progress(tokens=part(3, 5, b"c")))) == [HELD]
    (found,) = await call_store(read())
    assert [each.sealed for each in found.tokens] == [b"aaa", b"ccccc"]
    response_tables.check_counts()


@pytest.mark.parametrize("first_index", [1, 5])
async def test_tokens_after_missing_ones_or_from_the_middle_of_a_part_release_the_lease(call_store, first_index):
    await call_store(create(background=True))
    await call_store(extend(progress(tokens=part(0, 4))))
    with pytest.raises(Aborted):
        await call_store(finish(tokens=part(first_index, 10)))
    assert await call_store(extend(progress(tokens=part(first_index, 10)))) == [LOST]
    (claimed,) = await call_store(claim())
    assert (claimed.epoch, ranges(claimed)) == (2, [(0, 4)])


async def test_a_chain_is_read_oldest_first(call_store):
    await call_store(create("a", request=b"1"))
    await call_store(finish("a", tokens=part(0, 2)))
    await call_store(create("b", request=b"2", previous_response_id="a"))
    await call_store(create("c", request=b"3", previous_response_id="b"))
    await call_store(create("side", request=b"4", previous_response_id="a"))
    found = await call_store(chain("c"))
    assert [each.request for each in found] == [b"1", b"2", b"3"]
    assert [each.status for each in found] == [COMPLETED, IN_PROGRESS, IN_PROGRESS]
    assert [each.output for each in found] == [b"output", b"", b""]
    assert not any(each.tokens or each.resume for each in found)


async def test_a_missing_link_is_named(call_store):
    await call_store(create("a"))
    await call_store(create("b", previous_response_id="a"))
    await call_store(create("c", previous_response_id="b"))
    await call_store(delete("a"))
    for latest in ("b", "c"):
        with pytest.raises(NotFound, match="'a'"):
            await call_store(chain(latest))
    with pytest.raises(NotFound, match="'unknown'"):
        await call_store(chain("unknown"))


async def test_a_conversation_has_a_bounded_size(call_store, monkeypatch):
    monkeypatch.setattr(bounds, "CHAINED", 3)
    names = ["", "a", "b", "c", "d"]
    for previous, name in itertools.pairwise(names):
        await call_store(create(name, previous_response_id=previous, request=b"x" * 10))
    assert len(await call_store(chain("c"))) == 3
    with pytest.raises(InvalidArgument) as error:
        await call_store(chain("d"))
    assert error.value.reason == "CONTEXT_TOO_LARGE"
    monkeypatch.setattr(bounds, "CHAIN_BYTES", 29)
    assert len(await call_store(chain("b"))) == 2
    with pytest.raises(InvalidArgument):
        await call_store(chain("c"))


async def test_a_cycle_that_a_reused_id_makes_is_no_conversation(call_store, monkeypatch):
    monkeypatch.setattr(bounds, "CHAINED", 20)
    await call_store(create("a"))
    await call_store(create("b", previous_response_id="a"))
    await call_store(delete("a"))
    await call_store(create("a", previous_response_id="b"))
    with pytest.raises(InvalidArgument):
        await call_store(chain("a"))
