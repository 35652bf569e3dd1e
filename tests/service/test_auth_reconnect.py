"""Edges that reconnect or disappear, and restarts of auth, over real servers."""

from structlog.testing import capture_logs

from auth_server import (
    FakeClock,
    auth_process,
    edge,
    rejection_of,
    tenant_use,
    tenant_with_key,
    wait_for_figure,
)
from penstock.auth import service
from penstock.mesh.v1.admission_pb2 import Reserve


async def test_an_edge_that_reconnects_in_time_keeps_its_reservations(monkeypatch):
    monkeypatch.setattr(service, "SWEEP_INTERVAL_S", 0.001)
    async with auth_process(edge_grace=30.0) as found:
        async with edge(found) as stream:
            admitted = await stream.reserve()
        await wait_for_figure(found, "edges", 0)
        found.clock.now += 29.0
        async with edge(found) as stream:
            found.clock.now += 60.0
            assert (await stream.reserve()).reservation_id == admitted.reservation_id
            await stream.settle(admitted.reservation_id)
        assert (await tenant_use(found)).output_tokens == 7


async def test_an_edge_that_stays_away_loses_its_reservations_and_can_correct_charges(monkeypatch):
    monkeypatch.setattr(service, "SWEEP_INTERVAL_S", 0.001)
    async with auth_process(edge_grace=30.0) as found, edge(found, "edge-2") as other:
        kept = await other.reserve("request-2")
        async with edge(found) as stream:
            admitted = await stream.reserve()
        await wait_for_figure(found, "edges", 1)
        found.clock.now += 30.0
        await wait_for_figure(found, "reservations", 1)
        assert (await tenant_use(found)).output_tokens == 0
        async with edge(found) as stream:
            await stream.settle(admitted.reservation_id)
        used = await tenant_use(found)
        assert (used.output_tokens, used.requests, used.concurrent_requests) == (7, 1, 1)
        assert (await other.settle(kept.reservation_id)).reservation_id == kept.reservation_id


async def test_an_unsettled_reservation_expires(monkeypatch):
    monkeypatch.setattr(service, "SWEEP_INTERVAL_S", 0.001)
    async with auth_process(reservation_ttl=10.0) as found, edge(found) as stream:
        await stream.reserve()
        with capture_logs() as logs:
            found.clock.now += 10.0
            await wait_for_figure(found, "reservations", 0)
        assert [each["event"] for each in logs] == ["reservation_expired"]
        assert (logs[0]["ticket_id"], logs[0]["tenant"], logs[0]["key_id"]) == ("request-1", "default", "dev")


async def test_reservations_keys_and_use_survive_a_restart(stored):
    clock = FakeClock()
    async with auth_process(stored.location, clock=clock) as found, edge(found) as stream:
        credential = await tenant_with_key(found, tokens_per_minute=60)
        salt = (await stream.identify(credential)).identity.cache_salt
        done = await stream.reserve("request-0", 5, 5, credential=credential)
        await stream.settle(done.reservation_id, 5, 5)
        open_one = await stream.reserve("request-1", 10, 40, credential=credential)
    async with auth_process(stored.location, clock=clock) as found, edge(found) as stream:
        assert found.figures["reservations"] == 1
        again = await stream.reserve("request-1", 10, 40, credential=credential)
        assert again.reservation_id == open_one.reservation_id
        assert again.identity.cache_salt == salt
        assert rejection_of(await stream.reserve("request-2", 0, 1, credential=credential)).retry_after == 1.0
        await stream.settle(open_one.reservation_id, 10, 40)
        assert (await stream.settle(done.reservation_id)).reservation_id == done.reservation_id
        used = await tenant_use(found, "acme")
        assert (used.prompt_tokens, used.output_tokens, used.requests) == (15, 45, 2)


async def test_an_edge_that_does_not_reconnect_after_a_restart_expires(stored, monkeypatch):
    monkeypatch.setattr(service, "SWEEP_INTERVAL_S", 0.001)
    clock = FakeClock()
    async with auth_process(stored.location, clock=clock) as found, edge(found) as stream:
        await stream.reserve()
    async with auth_process(stored.location, clock=clock, edge_grace=30.0) as found:
        assert found.figures["reservations"] == 1
        clock.now += 30.0
        await wait_for_figure(found, "reservations", 0)


async def test_a_reservation_that_cannot_be_stored_is_rejected(stored):
    async with auth_process(stored.location) as found, edge(found) as stream:
        with stored.full_disk():
            assert (await stream.reserve()).is_unavailable  # edges decide before they hear of the rejection
            error = rejection_of(await stream.receive())
            assert found.figures["store_available"] == 0
            async with edge(found, "edge-2") as other:
                assert (await other.receive()).is_unavailable
        assert (error.reason, error.retry_after) == ("STORE_UNAVAILABLE", 1.0)
        assert found.figures["reserved_tokens"] == 0
        assert not (await stream.receive()).is_unavailable
        assert (await stream.reserve()).reservation_id


async def test_a_stored_reservation_that_is_repeated_while_the_store_is_unavailable_stays(stored):
    async with auth_process(stored.location) as found, edge(found) as stream:
        admitted = await stream.reserve()
        with stored.full_disk():
            assert (await stream.reserve("request-2")).is_unavailable
            assert rejection_of(await stream.receive()).reason == "STORE_UNAVAILABLE"
            await stream.send(reserve=Reserve(request_id="request-1", credential=stream.credential, prompt_tokens=1))
            assert (await stream.reserve("request-3")).request_id == "request-3"  # the next answer
        assert not (await stream.receive()).is_unavailable
        assert found.figures["reservations"] == 1
        assert (await stream.settle(admitted.reservation_id)).reservation_id == admitted.reservation_id
        assert (await tenant_use(found)).requests == 1


async def test_edges_receive_end_after_their_pending_answers():
    async with auth_process() as found, edge(found) as stream:
        await stream.send(reserve=Reserve(request_id="request-1", credential=stream.credential, prompt_tokens=1))
        await wait_for_figure(found, "reservations", 1)
        await found.service.drain()
        assert (await stream.receive()).request_id == "request-1"
        assert (await stream.receive()).reason == "draining"
