"""Auth fallback of a real edge whose auth stops, stalls or restarts: admissions, rejections and exact charges."""

import asyncio

import grpc
import pytest
from structlog.testing import capture_logs

from auth_server import full_disk
from edge_auth_mesh import KEY, edge_auth_mesh
from edge_mesh import text_of
from penstock.auth.store import threaded
from penstock.auth.store.store import ChargesNotPersisted
from penstock.chassis.errors import PenstockError
from penstock.client import Client
from penstock.client.retries import RetryPolicy
from penstock.edge import runner
from penstock.edge.text.executor import TokenizerPools
from penstock.edge.upstreams import auth as auth_link
from penstock.edge.upstreams import auth_streams

FAST_OUTAGE = {"auth_fallback_after": 0.05}
UNKNOWN_KEY = "pk_unknown_" + "0123456789abcdef" * 2
PROMPT, TOKENS, CLIENT_TOKENS = 2, 9, 4  # tokens; the test acts after CLIENT_TOKENS
FULL_CHARGE = (PROMPT, TOKENS, "length")


def client_of(mesh, key=KEY, attempts=1):
    return Client(*mesh.addresses, api_key=key, retries=RetryPolicy(max_attempts=attempts, backoff=(0.001, 0.002)))


async def answer(client) -> str:
    async with client.generate("hi", max_output_tokens=TOKENS) as found:
        return await found.read()


async def cache_identity(mesh, client):
    """Complete and settle one answer, so that the edge caches the caller's identity."""
    await answer(client)
    await mesh.wait_for_figure("reservations_open", 0)


async def rejection_of(call) -> PenstockError:
    with pytest.raises(PenstockError) as failure:
        await call
    return failure.value


async def paused_answer(mesh, client):
    """A running answer with CLIENT_TOKENS tokens. `mesh.workers[0].send_tokens(handle)` finishes it."""
    mesh.workers[0].pause_at_index = CLIENT_TOKENS
    reading = asyncio.create_task(answer(client))
    handle = await mesh.workers[0].paused.get()
    mesh.workers[0].pause_at_index = None
    return reading, handle


async def lose_auth(mesh):
    await mesh.auth.stop()
    await mesh.wait_for_figure("auth_unreachable", 1)


async def all_recorded(mesh) -> list[tuple]:
    await mesh.wait_for_figure("deferred_reservations", 0)
    await mesh.wait_for_figure("reservations_open", 0)
    return await mesh.wait_settled()


async def test_a_cached_caller_is_served_without_auth_and_charged_once_auth_is_back(tmp_path):
    async with edge_auth_mesh(tmp_path, **FAST_OUTAGE) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        await lose_auth(mesh)
        assert await answer(client) == text_of(TOKENS)
        figures = await mesh.figures()
        assert (figures["fallback_admitted"], figures["deferred_reservations"], figures["active_requests"]) == (1, 1, 0)
        await mesh.auth.start()
        assert await all_recorded(mesh) == [FULL_CHARGE, FULL_CHARGE]


async def test_a_request_waiting_for_auth_is_admitted_by_fallback_and_charged_mid_answer(tmp_path):
    async with edge_auth_mesh(tmp_path, **FAST_OUTAGE) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        mesh.auth.service.is_paused = True
        reading, handle = await paused_answer(mesh, client)
        await mesh.auth.stop()
        await mesh.auth.start()
        await mesh.wait_for_figure("deferred_reservations", 0)
        mesh.workers[0].send_tokens(handle)
        assert await reading == text_of(TOKENS)
        assert await all_recorded(mesh) == [FULL_CHARGE, FULL_CHARGE]


@pytest.mark.parametrize("when", ["it ended", "it runs"])
async def test_a_stalled_auth_records_each_fallback_admission_once(tmp_path, when):
    async with edge_auth_mesh(tmp_path, **FAST_OUTAGE) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        mesh.auth.service.is_paused = True
        reading, handle = await paused_answer(mesh, client)
        if when == "it runs":
            mesh.auth.service.resume()
            await mesh.wait_for_figure("deferred_reservations", 0)
        mesh.workers[0].send_tokens(handle)
        await reading
        mesh.auth.service.resume()
        assert await all_recorded(mesh) == [FULL_CHARGE, FULL_CHARGE]


async def test_a_reservation_whose_response_was_lost_is_settled(tmp_path, monkeypatch):
    async with edge_auth_mesh(tmp_path, **FAST_OUTAGE) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        monkeypatch.setattr(mesh.auth.service, "_on_reservation_persisted", lambda *_, **__: None)
        assert await answer(client) == text_of(TOKENS)
        await mesh.auth.stop()
        await mesh.auth.start()
        assert mesh.auth.authorizer.reservations.reservation_count == 1
        assert await all_recorded(mesh) == [FULL_CHARGE, FULL_CHARGE]


async def test_a_reservation_of_a_request_rejected_by_fallback_is_released(tmp_path, monkeypatch):
    async with edge_auth_mesh(tmp_path, **FAST_OUTAGE) as mesh, client_of(mesh, UNKNOWN_KEY) as unknown_caller:
        assert (await rejection_of(unknown_caller.list_models())).reason == "KEY_UNKNOWN"  # auth has answered once
        monkeypatch.setattr(mesh.auth.service, "_on_reservation_persisted", lambda *_, **__: None)
        async with client_of(mesh) as client:
            assert (await rejection_of(answer(client))).reason == "AUTH_LOST"
        await mesh.auth.stop()
        await mesh.auth.start()
        assert mesh.auth.authorizer.reservations.reservation_count == 1
        await mesh.wait_for_figure("active_requests", 0)
        assert await all_recorded(mesh) == [(0, 0, "failed")]


@pytest.mark.parametrize("is_restarted", [True, False])
async def test_an_orphaned_reservation_is_released(tmp_path, monkeypatch, is_restarted):
    """Auth did not respond within the timeout, and holds the reservation until it expires."""
    monkeypatch.setattr(auth_link, "RESEND_INTERVAL_S", 3_600.0 if is_restarted else 0.01)
    monkeypatch.setattr(runner, "SETTLEMENT_TIMEOUT_S", 0.2)  # auth stops before it confirms
    async with (
        edge_auth_mesh(tmp_path, auth_fallback_after=3_600.0, upstream_timeout=0.05) as mesh,
        client_of(mesh) as client,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(mesh.auth.service, "_on_reservation_persisted", lambda *_, **__: None)
            assert (await rejection_of(answer(client))).reason == "AUTH_LOST"
            await mesh.wait_for_figure("active_requests", 0)
            assert mesh.auth.authorizer.reservations.reservation_count == 1
        if is_restarted:
            await mesh.auth.stop()
            await mesh.auth.start()
        assert await all_recorded(mesh) == [(0, 0, "cancelled")]


async def test_an_unconfirmed_settlement_is_not_charged_twice(tmp_path, monkeypatch):
    async with edge_auth_mesh(tmp_path, **FAST_OUTAGE) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        await lose_auth(mesh)
        await answer(client)
        await mesh.auth.start()
        monkeypatch.setattr(mesh.auth.service, "_on_settlement_persisted", lambda *_: None)
        await mesh.wait_for_figure("deferred_reservations", 0)
        assert (await mesh.figures())["reservations_open"] == 1
        await mesh.auth.stop()
        await mesh.auth.start()
        assert await all_recorded(mesh) == [FULL_CHARGE, FULL_CHARGE]


async def test_a_deferred_reservation_of_an_unknown_key_is_logged_and_dropped(tmp_path):
    """Auth restarts without its keys."""
    async with edge_auth_mesh(tmp_path, **FAST_OUTAGE) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        await lose_auth(mesh)
        reading, handle = await paused_answer(mesh, client)
        await answer(client)
        with capture_logs() as lines:
            await mesh.auth.start(without_key="dev")
            await mesh.wait_for_figure("deferred_reservations", 0)
        rejections = [line for line in lines if line["event"] == "deferred_reservation_rejected"]
        assert [(line["tenant"], line["key_id"]) for line in rejections] == [("default", "dev")] * 2
        mesh.workers[0].send_tokens(handle)
        assert await reading == text_of(TOKENS)
        assert await all_recorded(mesh) == [FULL_CHARGE]


async def test_a_deferred_reservation_is_recorded_once_auth_can_write(tmp_path, monkeypatch):
    monkeypatch.setattr(auth_link, "RESEND_INTERVAL_S", 0.01)
    async with edge_auth_mesh(tmp_path, **FAST_OUTAGE) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        mesh.auth.service.is_paused = True
        await answer(client)
        was_ignored = asyncio.Event()
        monkeypatch.setattr(mesh.auth.authorizer.reservations, "is_live", lambda _: was_ignored.set())
        mesh.auth.service.resume()
        await was_ignored.wait()
        assert (await mesh.figures())["deferred_reservations"] == 1
        monkeypatch.undo()
        assert await all_recorded(mesh) == [FULL_CHARGE, FULL_CHARGE]


async def test_a_charge_that_a_stopping_auth_cannot_write_is_repeated_by_its_edge(tmp_path, monkeypatch):
    monkeypatch.setattr(auth_streams, "SETTLEMENT_DELAY_S", 0.0)  # auth has the charge before it stops
    monkeypatch.setattr(threaded, "RETRY_INTERVAL_S", 0.0)
    async with edge_auth_mesh(tmp_path, auth_fallback_after=3_600.0) as mesh, client_of(mesh) as client:
        reading, handle = await paused_answer(mesh, client)
        with full_disk(monkeypatch):
            mesh.workers[0].send_tokens(handle)
            assert await reading == text_of(TOKENS)
            await mesh.wait_for_figure("reservations_open", 1)
            with pytest.raises(ChargesNotPersisted):
                await mesh.auth.stop()
        await mesh.auth.start()
        assert await all_recorded(mesh) == [FULL_CHARGE]


async def test_an_edge_that_ends_before_auth_can_write_reports_its_settlements(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "SETTLEMENT_TIMEOUT_S", 0.05)
    async with edge_auth_mesh(tmp_path, auth_fallback_after=3_600.0) as mesh, client_of(mesh) as client:
        reading, handle = await paused_answer(mesh, client)
        with full_disk(monkeypatch), capture_logs() as lines:
            mesh.workers[0].send_tokens(handle)
            assert await reading == text_of(TOKENS)
            await mesh.edge_stacks[0].aclose()
        assert [line["count"] for line in lines if line["event"] == "settlements_unconfirmed"] == [1]
        assert await mesh.wait_settled() == [FULL_CHARGE]


async def test_a_cached_caller_is_served_while_the_disk_of_auth_is_full_and_charged_once_after(tmp_path, monkeypatch):
    """Every request has one charge, the tenant keeps to its grant, and strangers are rejected."""
    monkeypatch.setattr(auth_link, "RESEND_INTERVAL_S", 0.01)
    monkeypatch.setattr(threaded, "RETRY_INTERVAL_S", 0.01)
    grant = 4 * (PROMPT + TOKENS)
    async with (
        edge_auth_mesh(tmp_path, auth={"fallback_tokens": grant}, auth_fallback_after=3_600.0) as mesh,
        client_of(mesh) as client,
        client_of(mesh, UNKNOWN_KEY) as unknown_caller,
    ):
        await cache_identity(mesh, client)
        reading, handle = await paused_answer(mesh, client)
        with full_disk(monkeypatch), capture_logs() as lines:
            assert await answer(client) == text_of(TOKENS)  # its reservation could not be stored
            await mesh.wait_for_figure("auth_unreachable", 1)
            mesh.workers[0].send_tokens(handle)
            assert await reading == text_of(TOKENS)
            for _ in range(3):
                assert await answer(client) == text_of(TOKENS)
            assert (await rejection_of(answer(client))).reason == "AUTH_LOST"  # the grant is used up
            assert (await rejection_of(answer(unknown_caller))).reason == "AUTH_LOST"
            figures = await mesh.figures()
            assert (figures["fallback_admitted"], figures["deferred_reservations"]) == (4, 4)
        events = [line["event"] for line in lines if line["event"] in {"store_unavailable", "auth_unreachable"}]
        assert events == ["store_unavailable", "auth_unreachable"]
        # Frames that auth cannot record are not repeated to it.
        assert sum(line["event"] == "reservation_rejected" for line in lines) <= 3
        await mesh.wait_for_figure("auth_unreachable", 0)
        assert (await rejection_of(answer(unknown_caller))).reason == "KEY_UNKNOWN"
        assert await answer(client) == text_of(TOKENS)
        assert await all_recorded(mesh) == [FULL_CHARGE] * 7


async def test_an_edge_that_connects_while_the_disk_is_full_decides_at_once(tmp_path, monkeypatch):
    async with edge_auth_mesh(tmp_path, auth_fallback_after=3_600.0) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        with full_disk(monkeypatch):
            assert await answer(client) == text_of(TOKENS)
            await mesh.auth.service.drain()
            await mesh.wait_for_figure("auth_unreachable", 1)
            await mesh.wait_for_figure("auth_links_up", 1)
            assert await answer(client) == text_of(TOKENS)
            assert (await mesh.figures())["fallback_admitted"] == 2
        assert await all_recorded(mesh) == [FULL_CHARGE] * 3


async def test_an_unknown_caller_is_rejected_at_once_without_tokenizing(tmp_path, monkeypatch):
    tokenized = []
    run = TokenizerPools.run
    async with edge_auth_mesh(tmp_path, **FAST_OUTAGE) as mesh, client_of(mesh, UNKNOWN_KEY) as unknown_caller:
        async with client_of(mesh) as client:
            await cache_identity(mesh, client)
        await lose_auth(mesh)
        monkeypatch.setattr(TokenizerPools, "run", lambda *given: tokenized.append(given) or run(*given))
        error = await rejection_of(answer(unknown_caller))
        assert (error.code, error.reason, error.retry_after) == (grpc.StatusCode.UNAVAILABLE, "AUTH_LOST", 1.0)
        assert (await rejection_of(unknown_caller.list_models())).reason == "AUTH_LOST"
        assert (await rejection_of(unknown_caller.count_tokens("hi"))).reason == "AUTH_LOST"
        assert not tokenized
        figures = await mesh.figures()
        assert (figures["fallback_rejected"], figures["active_requests"]) == (3, 0)


async def test_an_unknown_caller_is_rejected_once_auth_is_unreachable(tmp_path):
    async with edge_auth_mesh(tmp_path, **FAST_OUTAGE) as mesh, client_of(mesh, UNKNOWN_KEY) as unknown_caller:
        async with client_of(mesh) as client:
            await cache_identity(mesh, client)
        mesh.auth.service.is_paused = True
        for call in (answer(unknown_caller), unknown_caller.list_models()):
            assert (await rejection_of(call)).reason == "AUTH_LOST"
        mesh.auth.service.resume()
        await mesh.wait_for_figure("auth_unreachable", 0)
        assert (await rejection_of(answer(unknown_caller))).reason == "KEY_UNKNOWN"


async def test_an_edge_without_a_response_of_auth_waits_for_it(tmp_path):
    async with edge_auth_mesh(tmp_path, **FAST_OUTAGE) as mesh, client_of(mesh) as client:
        mesh.auth.service.is_paused = True
        reading = asyncio.create_task(answer(client))
        await mesh.wait_for_figure("callers_asked", 1)
        await mesh.auth.stop()
        await mesh.wait_for_figure("auth_links_up", 0)
        await mesh.auth.start()
        assert await reading == text_of(TOKENS)
        figures = await mesh.figures()
        assert (figures["fallback_admitted"], figures["fallback_rejected"]) == (0, 0)


async def test_a_cached_caller_can_count_and_list_without_auth(tmp_path):
    async with edge_auth_mesh(tmp_path, **FAST_OUTAGE) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        await lose_auth(mesh)
        assert [model.name for model in await client.list_models()] == ["tiny"]
        assert (await client.count_tokens("hi")).prompt_tokens == PROMPT


@pytest.mark.parametrize(("granted", "served"), [(0, 0), (PROMPT + TOKENS - 1, 0), (2 * (PROMPT + TOKENS), 2)])
async def test_fallback_admits_a_tenant_up_to_its_grant(tmp_path, granted, served):
    settings = {"fallback_tokens": granted}
    async with edge_auth_mesh(tmp_path, auth=settings, **FAST_OUTAGE) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        await lose_auth(mesh)
        for _ in range(served):
            await answer(client)
        assert (await rejection_of(answer(client))).reason == "AUTH_LOST"
        await mesh.auth.start()
        assert await all_recorded(mesh) == [FULL_CHARGE] * (1 + served)


async def test_no_caller_is_admitted_after_the_fallback_period(tmp_path):
    async with edge_auth_mesh(tmp_path, auth_fallback_duration=0.0, **FAST_OUTAGE) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        await lose_auth(mesh)
        assert "unreachable for more than 0 s" in (await rejection_of(answer(client))).message


async def test_cached_callers_do_not_wait_for_a_draining_auth(tmp_path):
    async with edge_auth_mesh(tmp_path, auth_fallback_after=3_600.0) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        mesh.auth.service.is_closed = True
        await mesh.auth.service.drain()
        await mesh.wait_for_figure("auth_unreachable", 1)
        assert await answer(client) == text_of(TOKENS)
        assert (await mesh.figures())["fallback_admitted"] == 1
        mesh.auth.service.is_closed = False
        assert await all_recorded(mesh) == [FULL_CHARGE, FULL_CHARGE]


async def test_a_request_waiting_for_auth_is_admitted_when_auth_drains(tmp_path):
    async with edge_auth_mesh(tmp_path, auth_fallback_after=3_600.0) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        mesh.auth.service.is_paused = mesh.auth.service.is_closed = True
        reading = asyncio.create_task(answer(client))
        await mesh.wait_for_figure("requests_reserving", 1)
        await mesh.auth.service.drain()
        assert await reading == text_of(TOKENS)
        mesh.auth.service.resume()
        mesh.auth.service.is_closed = False
        assert await all_recorded(mesh) == [FULL_CHARGE, FULL_CHARGE]


async def test_a_key_revoked_in_an_outage_works_until_auth_is_back_and_is_charged(tmp_path):
    async with edge_auth_mesh(tmp_path, **FAST_OUTAGE) as mesh, client_of(mesh) as client:
        await cache_identity(mesh, client)
        mesh.auth.service.is_paused = True
        mesh.auth.authorizer.keys.revoke("dev", mesh.auth.now)
        assert await answer(client) == text_of(TOKENS)
        mesh.auth.service.resume()
        await mesh.wait_for_figure("deferred_reservations", 0)
        assert (await rejection_of(answer(client))).reason == "KEY_REVOKED"
        mesh.auth.service.is_paused = True
        assert (await rejection_of(answer(client))).reason == "AUTH_LOST"
        mesh.auth.service.resume()
        assert await all_recorded(mesh) == [FULL_CHARGE, FULL_CHARGE]


async def test_an_answer_admitted_by_a_lost_edge_is_charged_at_the_edge_that_resumes_it(tmp_path, monkeypatch):
    """Auth never received the first reservation; the second edge reports the tokens that the client has."""
    monkeypatch.setattr(runner, "SETTLEMENT_TIMEOUT_S", 0.2)
    async with edge_auth_mesh(tmp_path, edges=2, **FAST_OUTAGE) as mesh, client_of(mesh, attempts=5) as client:
        for _ in range(4):
            await answer(client)  # both edges cache the caller
        assert [(await mesh.figures(number))["cached_identities"] for number in (0, 1)] == [1, 1]
        for number in (0, 1):
            await mesh.wait_for_figure("reservations_open", 0, number=number)
        mesh.auth.service.is_paused = True
        reading, _ = await paused_answer(mesh, client)
        [alone] = [number for number in (0, 1) if (await mesh.figures(number))["active_requests"]]
        mesh.auth.service.disconnected_edges.add(f"edge-{alone + 1}")
        mesh.auth.service.drop_frames_of_disconnected()
        await mesh.edge_stacks[alone].aclose()
        assert await reading == text_of(TOKENS)
        mesh.auth.service.resume()
        await mesh.wait_for_figure("deferred_reservations", 0, number=1 - alone)
        await mesh.wait_for_figure("reservations_open", 0, number=1 - alone)
        assert await mesh.wait_settled() == [FULL_CHARGE] * 5
