"""An edge whose auth is dead, silent or just back: who gets in, who does not, and that each token is charged once."""

import asyncio

import grpc
import pytest
from structlog.testing import capture_logs

from edge_auth_mesh import KEY, edge_auth_mesh
from edge_mesh import text_of
from penstock.chassis.errors import PenstockError
from penstock.client import Client
from penstock.client.retries import RetryPolicy
from penstock.edge import runner
from penstock.edge.text.executor import TokenizerPools
from penstock.edge.upstreams import auth as auth_link

SOON = {"auth_fallback_after": 0.05}
STRANGER = "pk_stranger_" + "0123456789abcdef" * 2
PROMPT, TOKENS, HAD = 2, 9, 4  # tokens; HAD: when something happens
WHOLE = (PROMPT, TOKENS, "length")


def client_of(mesh, key=KEY, attempts=1):
    return Client(*mesh.addresses, api_key=key, retries=RetryPolicy(max_attempts=attempts, backoff=(0.001, 0.002)))


async def answer(client) -> str:
    async with client.generate("hi", max_output_tokens=TOKENS) as found:
        return await found.read()


async def known(mesh, client):
    """One answer that is over and settled, so that the edge knows who asks."""
    await answer(client)
    await mesh.wait_for_figure("reservations_open", 0)


async def refused(doing) -> PenstockError:
    with pytest.raises(PenstockError) as failure:
        await doing
    return failure.value


async def until_paused(mesh, client):
    """An answer under way that has HAD tokens; finish it with `mesh.workers[0].send_tokens(handle)`."""
    mesh.workers[0].pause_at_index = HAD
    reading = asyncio.create_task(answer(client))
    handle = await mesh.workers[0].paused.get()
    mesh.workers[0].pause_at_index = None
    return reading, handle


async def without_auth(mesh):
    await mesh.auth.stop()
    await mesh.wait_for_figure("auth_unreachable", 1)


async def all_booked(mesh) -> list[tuple]:
    await mesh.wait_for_figure("deferred_reservations", 0)
    await mesh.wait_for_figure("reservations_open", 0)
    return await mesh.wait_settled()


async def test_a_known_caller_is_answered_without_auth_and_charged_once_it_is_back(tmp_path):
    async with edge_auth_mesh(tmp_path, **SOON) as mesh, client_of(mesh) as client:
        await known(mesh, client)
        await without_auth(mesh)
        assert await answer(client) == text_of(TOKENS)
        figures = await mesh.figures()
        assert (figures["fallback_admitted"], figures["deferred_reservations"], figures["active_requests"]) == (1, 1, 0)
        await mesh.auth.start()
        assert await all_booked(mesh) == [WHOLE, WHOLE]


async def test_who_waits_when_auth_goes_is_let_in_and_charged_when_it_is_back_in_the_midst_of_the_answer(tmp_path):
    async with edge_auth_mesh(tmp_path, **SOON) as mesh, client_of(mesh) as client:
        await known(mesh, client)
        mesh.auth.service.is_paused = True
        reading, handle = await until_paused(mesh, client)
        await mesh.auth.stop()
        await mesh.auth.start()
        await mesh.wait_for_figure("deferred_reservations", 0)
        mesh.workers[0].send_tokens(handle)
        assert await reading == text_of(TOKENS)
        assert await all_booked(mesh) == [WHOLE, WHOLE]


@pytest.mark.parametrize("when", ["it ended", "it runs"])
async def test_auth_that_stood_still_and_answers_late_books_what_went_on_without_it_once(tmp_path, when):
    async with edge_auth_mesh(tmp_path, **SOON) as mesh, client_of(mesh) as client:
        await known(mesh, client)
        mesh.auth.service.is_paused = True
        reading, handle = await until_paused(mesh, client)
        if when == "it runs":
            mesh.auth.service.resume()
            await mesh.wait_for_figure("deferred_reservations", 0)
        mesh.workers[0].send_tokens(handle)
        await reading
        mesh.auth.service.resume()
        assert await all_booked(mesh) == [WHOLE, WHOLE]


async def test_a_reservation_that_auth_made_and_never_named_is_the_one_that_is_settled(tmp_path, monkeypatch):
    async with edge_auth_mesh(tmp_path, **SOON) as mesh, client_of(mesh) as client:
        await known(mesh, client)
        monkeypatch.setattr(mesh.auth.service, "_on_reservation_persisted", lambda *_, **__: None)
        assert await answer(client) == text_of(TOKENS)
        await mesh.auth.stop()
        await mesh.auth.start()
        assert mesh.auth.desk.reservations.reservation_count == 1
        assert await all_booked(mesh) == [WHOLE, WHOLE]


async def test_a_reservation_for_whom_the_edge_refused_meanwhile_is_given_back(tmp_path, monkeypatch):
    async with edge_auth_mesh(tmp_path, **SOON) as mesh, client_of(mesh, STRANGER) as stranger:
        assert (await refused(stranger.list_models())).reason == "KEY_UNKNOWN"  # auth was there once
        monkeypatch.setattr(mesh.auth.service, "_on_reservation_persisted", lambda *_, **__: None)
        async with client_of(mesh) as client:
            assert (await refused(answer(client))).reason == "AUTH_LOST"
        await mesh.auth.stop()
        await mesh.auth.start()
        assert mesh.auth.desk.reservations.reservation_count == 1
        await mesh.wait_for_figure("active_requests", 0)
        assert await all_booked(mesh) == [(0, 0, "failed")]


@pytest.mark.parametrize("is_restarted", [True, False])
async def test_a_reservation_that_nobody_waits_for_any_more_is_given_back(tmp_path, monkeypatch, is_restarted):
    """Auth was silent for longer than anybody's patience, and would hold it until it lapses."""
    monkeypatch.setattr(auth_link, "RESEND_INTERVAL_S", 3_600.0 if is_restarted else 0.01)
    monkeypatch.setattr(runner, "DRAIN_TIMEOUT_S", 0.2)  # auth is gone before it has confirmed
    async with (
        edge_auth_mesh(tmp_path, auth_fallback_after=3_600.0, upstream_timeout=0.05) as mesh,
        client_of(mesh) as client,
    ):
        with monkeypatch.context() as unheard:
            unheard.setattr(mesh.auth.service, "_on_reservation_persisted", lambda *_, **__: None)
            assert (await refused(answer(client))).reason == "AUTH_LOST"
            await mesh.wait_for_figure("active_requests", 0)
            assert mesh.auth.desk.reservations.reservation_count == 1
        if is_restarted:
            await mesh.auth.stop()
            await mesh.auth.start()
        assert await all_booked(mesh) == [(0, 0, "cancelled")]


async def test_a_settlement_that_auth_kept_and_never_confirmed_is_not_charged_again(tmp_path, monkeypatch):
    async with edge_auth_mesh(tmp_path, **SOON) as mesh, client_of(mesh) as client:
        await known(mesh, client)
        await without_auth(mesh)
        await answer(client)
        await mesh.auth.start()
        monkeypatch.setattr(mesh.auth.service, "_on_settlement_persisted", lambda *_: None)
        await mesh.wait_for_figure("deferred_reservations", 0)
        assert (await mesh.figures())["reservations_open"] == 1
        await mesh.auth.stop()
        await mesh.auth.start()
        assert await all_booked(mesh) == [WHOLE, WHOLE]


async def test_what_auth_can_never_book_is_told_of_once_and_given_up(tmp_path):
    """As when it comes back without its keys."""
    async with edge_auth_mesh(tmp_path, **SOON) as mesh, client_of(mesh) as client:
        await known(mesh, client)
        await without_auth(mesh)
        reading, handle = await until_paused(mesh, client)
        await answer(client)
        with capture_logs() as lines:
            await mesh.auth.start(without_key="dev")
            await mesh.wait_for_figure("deferred_reservations", 0)
        told = [line for line in lines if line["event"] == "deferred_reservation_rejected"]
        assert [(line["tenant"], line["key_id"]) for line in told] == [("default", "dev")] * 2
        mesh.workers[0].send_tokens(handle)
        assert await reading == text_of(TOKENS)
        assert await all_booked(mesh) == [WHOLE]


async def test_a_disk_that_is_full_when_auth_is_back_books_it_later(tmp_path, monkeypatch):
    monkeypatch.setattr(auth_link, "RESEND_INTERVAL_S", 0.01)
    async with edge_auth_mesh(tmp_path, **SOON) as mesh, client_of(mesh) as client:
        await known(mesh, client)
        mesh.auth.service.is_paused = True
        await answer(client)
        turned_away = asyncio.Event()
        monkeypatch.setattr(mesh.auth.desk.reservations, "is_live", lambda _: turned_away.set())
        mesh.auth.service.resume()
        await turned_away.wait()
        assert (await mesh.figures())["deferred_reservations"] == 1
        monkeypatch.undo()
        assert await all_booked(mesh) == [WHOLE, WHOLE]


async def test_a_stranger_is_refused_at_once_and_costs_no_tokenizing(tmp_path, monkeypatch):
    tokenized = []
    run = TokenizerPools.run
    async with edge_auth_mesh(tmp_path, **SOON) as mesh, client_of(mesh, STRANGER) as stranger:
        async with client_of(mesh) as client:
            await known(mesh, client)
        await without_auth(mesh)
        monkeypatch.setattr(TokenizerPools, "run", lambda *given: tokenized.append(given) or run(*given))
        error = await refused(answer(stranger))
        assert (error.code, error.reason, error.retry_after) == (grpc.StatusCode.UNAVAILABLE, "AUTH_LOST", 1.0)
        assert (await refused(stranger.list_models())).reason == "AUTH_LOST"
        assert (await refused(stranger.count_tokens("hi"))).reason == "AUTH_LOST"
        assert not tokenized
        figures = await mesh.figures()
        assert (figures["fallback_rejected"], figures["active_requests"]) == (3, 0)


async def test_a_stranger_who_waits_when_auth_falls_silent_is_refused_then(tmp_path):
    async with edge_auth_mesh(tmp_path, **SOON) as mesh, client_of(mesh, STRANGER) as stranger:
        async with client_of(mesh) as client:
            await known(mesh, client)
        mesh.auth.service.is_paused = True
        for doing in (answer(stranger), stranger.list_models()):
            assert (await refused(doing)).reason == "AUTH_LOST"
        mesh.auth.service.resume()
        await mesh.wait_for_figure("auth_unreachable", 0)
        assert (await refused(answer(stranger))).reason == "KEY_UNKNOWN"


async def test_an_edge_that_just_started_has_everybody_wait_for_auth(tmp_path):
    async with edge_auth_mesh(tmp_path, **SOON) as mesh, client_of(mesh) as client:
        mesh.auth.service.is_paused = True
        reading = asyncio.create_task(answer(client))
        await mesh.wait_for_figure("requests_reserving", 1)
        await mesh.auth.stop()
        await mesh.wait_for_figure("auth_links_up", 0)
        await mesh.auth.start()
        assert await reading == text_of(TOKENS)
        figures = await mesh.figures()
        assert (figures["fallback_admitted"], figures["fallback_rejected"]) == (0, 0)


async def test_a_known_caller_can_count_and_list_without_auth(tmp_path):
    async with edge_auth_mesh(tmp_path, **SOON) as mesh, client_of(mesh) as client:
        await known(mesh, client)
        await without_auth(mesh)
        assert [model.name for model in await client.list_models()] == ["tiny"]
        assert (await client.count_tokens("hi")).prompt_tokens == PROMPT


@pytest.mark.parametrize(("granted", "served"), [(0, 0), (PROMPT + TOKENS - 1, 0), (2 * (PROMPT + TOKENS), 2)])
async def test_a_tenant_is_let_in_up_to_what_auth_granted_before_it_went(tmp_path, granted, served):
    settings = {"fallback_tokens": granted}
    async with edge_auth_mesh(tmp_path, auth=settings, **SOON) as mesh, client_of(mesh) as client:
        await known(mesh, client)
        await without_auth(mesh)
        for _ in range(served):
            await answer(client)
        assert (await refused(answer(client))).reason == "AUTH_LOST"
        await mesh.auth.start()
        assert await all_booked(mesh) == [WHOLE] * (1 + served)


async def test_when_the_grace_is_over_nobody_is_let_in(tmp_path):
    async with edge_auth_mesh(tmp_path, auth_fallback_duration=0.0, **SOON) as mesh, client_of(mesh) as client:
        await known(mesh, client)
        await without_auth(mesh)
        assert "unreachable for more than 0 s" in (await refused(answer(client))).message


async def test_auth_that_drains_is_not_waited_for_by_callers_it_let_in(tmp_path):
    async with edge_auth_mesh(tmp_path, auth_fallback_after=3_600.0) as mesh, client_of(mesh) as client:
        await known(mesh, client)
        mesh.auth.service.is_closed = True
        await mesh.auth.service.drain()
        await mesh.wait_for_figure("auth_unreachable", 1)
        assert await answer(client) == text_of(TOKENS)
        assert (await mesh.figures())["fallback_admitted"] == 1
        mesh.auth.service.is_closed = False
        assert await all_booked(mesh) == [WHOLE, WHOLE]


async def test_who_waits_for_an_auth_that_drains_is_let_in_when_it_says_so(tmp_path):
    async with edge_auth_mesh(tmp_path, auth_fallback_after=3_600.0) as mesh, client_of(mesh) as client:
        await known(mesh, client)
        mesh.auth.service.is_paused = mesh.auth.service.is_closed = True
        reading = asyncio.create_task(answer(client))
        await mesh.wait_for_figure("requests_reserving", 1)
        await mesh.auth.service.drain()
        assert await reading == text_of(TOKENS)
        mesh.auth.service.resume()
        mesh.auth.service.is_closed = False
        assert await all_booked(mesh) == [WHOLE, WHOLE]


async def test_a_key_revoked_in_an_outage_lives_until_auth_is_back_and_what_it_spent_is_charged(tmp_path):
    async with edge_auth_mesh(tmp_path, **SOON) as mesh, client_of(mesh) as client:
        await known(mesh, client)
        mesh.auth.service.is_paused = True
        mesh.auth.desk.keys.revoke("dev", mesh.auth.now)
        assert await answer(client) == text_of(TOKENS)
        mesh.auth.service.resume()
        await mesh.wait_for_figure("deferred_reservations", 0)
        assert (await refused(answer(client))).reason == "KEY_REVOKED"
        mesh.auth.service.is_paused = True
        assert (await refused(answer(client))).reason == "AUTH_LOST"
        mesh.auth.service.resume()
        assert await all_booked(mesh) == [WHOLE, WHOLE]


async def test_an_answer_that_an_edge_let_in_alone_and_took_along_when_it_died_is_charged_where_it_goes_on(
    tmp_path, monkeypatch
):
    """Auth never heard of its beginning; the edge that goes on says what its client has."""
    monkeypatch.setattr(runner, "DRAIN_TIMEOUT_S", 0.2)
    async with edge_auth_mesh(tmp_path, edges=2, **SOON) as mesh, client_of(mesh, attempts=5) as client:
        for _ in range(4):
            await answer(client)  # both edges know the caller
        assert [(await mesh.figures(number))["cached_identities"] for number in (0, 1)] == [1, 1]
        mesh.auth.service.is_paused = True
        reading, _ = await until_paused(mesh, client)
        [alone] = [number for number in (0, 1) if (await mesh.figures(number))["active_requests"]]
        mesh.auth.service.dead_edges.add(f"edge-{alone + 1}")
        mesh.auth.service.drop_frames_of_dead()
        await mesh.edge_stacks[alone].aclose()
        assert await reading == text_of(TOKENS)
        mesh.auth.service.resume()
        await mesh.wait_for_figure("deferred_reservations", 0, number=1 - alone)
        await mesh.wait_for_figure("reservations_open", 0, number=1 - alone)
        assert await mesh.wait_settled() == [WHOLE] * 5
