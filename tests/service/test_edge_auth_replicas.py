"""An edge with several replicas of auth, each of which admits the tenants of its partitions."""

import asyncio

import grpc
import pytest
from structlog.testing import capture_logs

from auth_replicas import HIGH, LOW, bearer, claims, partitioned_mesh, tenant_in
from edge_mesh import text_of
from penstock.chassis.errors import Unavailable, error_from_rpc
from penstock.edge import runner
from penstock.edge.auth_fallback import partition_outages
from penstock.edge.upstreams import auth
from penstock.mesh.partitions import partition_of
from penstock.mesh.v1.admission_pb2 import AdmitResponse, OwnedPartitions, Rejected

FAST_OUTAGE = {"auth_fallback_after": 0.05}
LOW_TENANT, HIGH_TENANT = tenant_in(LOW), tenant_in(HIGH)
PARTITION = partition_of(LOW_TENANT)
NEWCOMER = tenant_in({PARTITION}, 1)  # whom no replica has admitted at this edge
TEXT = text_of(3)


@pytest.fixture(autouse=True)
def _without_repetition(monkeypatch):
    monkeypatch.setattr(auth, "RESEND_INTERVAL_S", 3_600.0)
    monkeypatch.setattr(runner, "SETTLEMENT_TIMEOUT_S", 0.05)  # some settlements stay unconfirmed on purpose


async def rejection_of(found, tenant):
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await found.answer(tenant)
    return error_from_rpc(failure.value)


async def paused_answer(found, tenant):
    """A running answer. `finish()` returns its text."""
    [worker] = found.mesh.workers
    worker.pause_at_index = 1
    reading = asyncio.create_task(found.answer(tenant))
    handle = await worker.paused.get()
    worker.pause_at_index = None

    async def finish():
        worker.send_tokens(handle)
        return await reading

    return finish


async def test_each_tenant_is_reserved_and_settled_at_the_owner_of_its_partition():
    async with partitioned_mesh(claims(LOW), claims(HIGH)) as found:
        low, high = found.replicas
        for tenant, owner, count in ((LOW_TENANT, low, 1), (HIGH_TENANT, high, 1), (LOW_TENANT, low, 2)):
            assert await found.answer(tenant) == TEXT
            await owner.wait_for("settle", count)
        await found.wait_for_figure("reservations_open", 0)
        for replica, answers in ((low, 2), (high, 1)):
            assert (replica.count("reserve"), replica.count("settle"), replica.not_owners) == (answers, answers, 0)
        assert len(low.identified) + len(high.identified) == 2
        assert (await found.mesh.figures())["auth_partitions_unowned"] == 0


async def test_a_replica_of_a_former_release_owns_all_partitions_until_its_stream_ends():
    async with partitioned_mesh(None) as found:
        for tenant in (LOW_TENANT, HIGH_TENANT):
            assert await found.answer(tenant) == TEXT
        await found.wait_for_figure("auth_partitions_unowned", 0)
        await found.replicas[0].stop()
        await found.wait_for_figure("auth_partitions_unowned", 64)


async def test_a_key_that_moved_to_a_tenant_of_another_replica_costs_one_not_owner():
    async with partitioned_mesh(claims(LOW), claims(HIGH)) as found:
        low, high = found.replicas
        assert await found.answer(LOW_TENANT) == TEXT
        for replica in found.replicas:
            replica.tenants[LOW_TENANT] = HIGH_TENANT
        for _ in range(3):
            assert await found.answer(LOW_TENANT) == TEXT
        await found.wait_for_figure("reservations_open", 0)
        assert (low.not_owners, high.not_owners) == (1, 0)
        assert (low.count("reserve"), high.count("reserve"), high.count("settle")) == (2, 3, 3)


async def test_a_takeover_repeats_the_open_frames_of_its_partition_once_and_in_order():
    async with partitioned_mesh(claims(LOW), claims(HIGH), upstream_timeout=2.0, **FAST_OUTAGE) as found:
        low, high = found.replicas
        other_tenant = tenant_in(set(LOW) - {PARTITION})
        for tenant in (LOW_TENANT, other_tenant, HIGH_TENANT):
            assert await found.answer(tenant) == TEXT
        await found.wait_for_figure("reservations_open", 0)
        low.ignored = high.ignored = {"settle"}
        for tenant in (other_tenant, HIGH_TENANT, LOW_TENANT):
            assert await found.answer(tenant) == TEXT
        await low.wait_for("settle", 4)
        low.ignored, high.ignored = {"settle", "reserve"}, set()
        assert await found.answer(LOW_TENANT) == TEXT  # under its grant
        for number, tenant in enumerate((tenant_in({partition_of(other_tenant)}, 1), NEWCOMER), 6):
            abandoned = found.mesh.generate(metadata=bearer(tenant))
            await low.wait_for("reserve", number)
            abandoned.cancel()
        await found.wait_for_figure("active_requests", 0)
        waiting = asyncio.create_task(found.answer(NEWCOMER))
        await low.wait_for("reserve", 8)
        settled, deferred, orphaned, reserved = (
            *(low.names("settle")[-1], low.names("deferred")[-1]),
            *low.names("reserve")[-2:],
        )
        before, former = len(high.received), len(low.received)
        high.claim({**high.epochs, PARTITION: 2})
        assert await waiting == TEXT
        await found.wait_for_figure("deferred_reservations", 0)
        repeated = [("settle", settled), ("deferred", deferred), ("reserve", reserved), ("reserve", orphaned)]
        assert high.received[before : before + len(repeated)] == repeated
        for name in (deferred, orphaned, reserved):
            await high.wait_for_name("settle", f"r-{name}")
        assert sorted(high.received[before:]) == sorted(
            [*repeated, *(("settle", f"r-{name}") for name in (deferred, orphaned, reserved))]
        )
        high.claim(high.epochs)
        assert await found.answer(HIGH_TENANT) == TEXT
        await high.wait_for("settle", 7)
        assert [kind for kind, _ in high.received[before + 7 :]] == ["reserve", "settle"]
        assert len(low.received) == former


async def test_tenants_of_a_dead_replica_go_on_or_wait_for_the_next_owner_and_others_do_not_notice():
    async with partitioned_mesh(claims(LOW), claims(HIGH), **FAST_OUTAGE) as found:
        low, high = found.replicas
        for tenant in (LOW_TENANT, HIGH_TENANT):
            assert await found.answer(tenant) == TEXT
        await found.wait_for_figure("reservations_open", 0)
        with capture_logs() as logs:
            await low.stop()
            assert await found.answer(LOW_TENANT) == TEXT  # under its grant
            waiting = asyncio.create_task(found.answer(NEWCOMER))
            await found.wait_for_figure("requests_reserving", 1)
            assert await found.answer(HIGH_TENANT) == TEXT
            figures = await found.mesh.figures()
            assert (figures["auth_partitions_unowned"], figures["auth_unreachable"]) == (len(LOW), 1)
            assert (figures["fallback_admitted"], figures["requests_reserving"]) == (1, 1)
            high.claim({**high.epochs, **claims(LOW, 2)})
            assert await waiting == TEXT
        await found.wait_for_figure("deferred_reservations", 0)
        await found.wait_for_figure("auth_unreachable", 0)
        figures = await found.mesh.figures()
        assert (figures["auth_partitions_unowned"], figures["fallback_rejected"]) == (0, 0)
        assert high.not_owners == 0
        lines = [(line["replica"], line["partitions"]) for line in logs if line["event"] == "auth_unreachable"]
        assert lines == [(low.address, len(LOW))]


async def test_a_caller_without_a_grant_is_rejected_if_no_replica_takes_over_in_time(monkeypatch):
    monkeypatch.setattr(partition_outages, "TAKEOVER_WAIT_S", 0.3)
    async with partitioned_mesh(claims(LOW), claims(HIGH), **FAST_OUTAGE) as found:
        assert await found.answer(HIGH_TENANT) == TEXT
        await found.replicas[0].stop()
        await found.wait_for_figure("auth_partitions_unowned", len(LOW))
        assert (await rejection_of(found, NEWCOMER)).reason == "AUTH_LOST"
        assert await found.answer(HIGH_TENANT) == TEXT


async def test_a_tenant_whose_grant_is_used_up_waits_for_the_next_owner():
    async with partitioned_mesh(claims(LOW), claims(HIGH), **FAST_OUTAGE) as found:
        low, high = found.replicas
        low.grant_tokens = 0
        for tenant in (LOW_TENANT, HIGH_TENANT):
            assert await found.answer(tenant) == TEXT
        await low.stop()
        waiting = asyncio.create_task(found.answer(LOW_TENANT))
        await found.wait_for_figure("auth_unreachable", 1)
        await found.wait_for_figure("requests_reserving", 1)
        high.claim({**high.epochs, **claims(LOW, 2)})
        assert await waiting == TEXT
        figures = await found.mesh.figures()
        assert (figures["fallback_admitted"], figures["fallback_rejected"]) == (0, 0)


async def test_a_request_that_a_replica_without_a_store_rejects_waits_for_the_next_owner():
    async with partitioned_mesh(claims(LOW), claims(HIGH), auth_fallback_after=3_600.0) as found:
        low, high = found.replicas
        assert await found.answer(HIGH_TENANT) == TEXT
        low.ignored = {"reserve"}
        waiting = asyncio.create_task(found.answer(NEWCOMER))
        await low.wait_for("reserve")
        low.set_store(is_unavailable=True)
        failure = Unavailable("the store cannot be written", reason="STORE_UNAVAILABLE").failure()
        low.send(AdmitResponse(rejected=Rejected(request_id=low.names("reserve")[0], failure=failure)))
        low.claim({})
        await found.wait_for_figure("auth_partitions_unowned", len(LOW))
        high.claim({**high.epochs, **claims(LOW, 2)})
        assert await waiting == TEXT


async def test_a_denied_claim_is_tried_again_with_the_repetition_of_open_frames(monkeypatch):
    """The answer of a replica may be older than its latest claim."""
    monkeypatch.setattr(auth, "RESEND_INTERVAL_S", 0.05)
    async with partitioned_mesh(claims(LOW), claims(HIGH)) as found:
        low, _ = found.replicas
        low.epochs = {}
        waiting = asyncio.create_task(found.answer(LOW_TENANT))
        await low.wait_for("reserve", 2)
        low.epochs = claims(LOW)
        assert await waiting == TEXT


async def test_a_waiting_caller_is_rejected_at_once_when_no_replica_is_left():
    async with partitioned_mesh(claims(LOW), claims(HIGH), **FAST_OUTAGE) as found:
        low, high = found.replicas
        assert await found.answer(HIGH_TENANT) == TEXT
        await low.stop()
        waiting = asyncio.create_task(rejection_of(found, NEWCOMER))
        await found.wait_for_figure("auth_unreachable", 1)
        await found.wait_for_figure("requests_reserving", 1)
        await high.stop()
        assert (await waiting).reason == "AUTH_LOST"


async def test_a_replica_whose_store_is_unavailable_affects_its_own_tenants_only():
    async with partitioned_mesh(claims(LOW), claims(HIGH), auth_fallback_after=3_600.0) as found:
        low = found.replicas[0]
        for tenant in (LOW_TENANT, HIGH_TENANT):
            assert await found.answer(tenant) == TEXT
        low.set_store(is_unavailable=True)
        await found.wait_for_figure("auth_unreachable", 1)
        assert await found.answer(LOW_TENANT) == TEXT
        waiting = asyncio.create_task(found.answer(NEWCOMER))
        await found.wait_for_figure("requests_reserving", 1)
        assert await found.answer(HIGH_TENANT) == TEXT
        assert (low.count("reserve"), (await found.mesh.figures())["fallback_admitted"]) == (1, 1)
        low.set_store(is_unavailable=False)
        assert await waiting == TEXT
        await found.wait_for_figure("deferred_reservations", 0)
        for replica in found.replicas:
            replica.set_store(is_unavailable=True)
        await found.wait_for_figure("auth_unreachable", 1)
        assert (await rejection_of(found, tenant_in({PARTITION}, 2))).reason == "AUTH_LOST"


async def test_a_replica_that_hands_its_partitions_over_and_ends_causes_no_rejection_and_no_fallback():
    async with partitioned_mesh(claims(LOW), claims(HIGH), auth_fallback_after=3_600.0) as found:
        low, high = found.replicas
        finish = await paused_answer(found, LOW_TENANT)
        low.claim({})
        await found.wait_for_figure("auth_partitions_unowned", len(LOW))
        waiting = [asyncio.create_task(found.answer(tenant)) for tenant in (LOW_TENANT, NEWCOMER)]
        await found.wait_for_figure("requests_reserving", 2)
        high.claim({**high.epochs, **claims(LOW, 2)})
        low.end()
        assert [await each for each in waiting] == [TEXT, TEXT]
        assert await finish() == TEXT
        await found.wait_for_figure("reservations_open", 0)
        figures = await found.mesh.figures()
        assert (figures["fallback_admitted"], figures["fallback_rejected"]) == (0, 0)
        assert (low.count("settle"), high.count("settle")) == (0, 3)
        assert low.not_owners == high.not_owners == 0


async def test_a_claim_with_a_lower_epoch_does_not_take_a_partition_over():
    async with partitioned_mesh(claims(LOW, 5), claims(HIGH, 5)) as found:
        low, high = found.replicas
        high.claim({**high.epochs, **claims(LOW, 4)})
        assert await found.answer(HIGH_TENANT) == TEXT  # after the claim
        assert await found.answer(LOW_TENANT) == TEXT
        assert (low.count("reserve"), high.count("reserve")) == (1, 1)


async def test_a_frame_that_the_route_denies_waits_for_the_next_claim():
    async with partitioned_mesh(claims(LOW), claims(HIGH)) as found:
        low, _ = found.replicas
        low.epochs = {}
        waiting = asyncio.create_task(found.answer(LOW_TENANT))
        await found.wait_for_figure("auth_partitions_unowned", 1)
        assert (low.count("reserve"), low.not_owners) == (1, 1)
        low.claim(claims(LOW))
        assert await waiting == TEXT
        assert (low.count("reserve"), low.not_owners) == (2, 1)


async def test_a_settlement_that_its_owner_denies_goes_to_the_next_owner():
    async with partitioned_mesh(claims(LOW), claims(HIGH)) as found:
        low, high = found.replicas
        finish = await paused_answer(found, LOW_TENANT)
        low.epochs = {}
        assert await finish() == TEXT
        await found.wait_for_figure("auth_partitions_unowned", 1)
        high.claim({**high.epochs, **claims(LOW, 2)})
        await found.wait_for_figure("reservations_open", 0)
        assert (low.count("settle"), high.count("settle")) == (1, 1)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ({"partitions": [1, 2], "epochs": [1]}, "OwnedPartitions.partitions and epochs are of (2, 1) entries"),
        ({"partitions": [2, 2], "epochs": [1, 1]}, "OwnedPartitions.partitions is [2, 2]; allowed: ascending"),
        ({"partitions": [64], "epochs": [1]}, "OwnedPartitions.partitions"),
        ({"partitions": range(65), "epochs": range(65)}, "OwnedPartitions.partitions"),
        ({"partitions": [1], "epochs": [2**64 - 1]}, "OwnedPartitions.epochs"),
    ],
)
async def test_an_invalid_claim_costs_its_replica_the_stream_and_nothing_else(frame, reason):
    async with partitioned_mesh(claims(LOW), claims(HIGH)) as found:
        low, high = found.replicas
        with capture_logs() as logs:
            low.send(AdmitResponse(owned_partitions=OwnedPartitions(**frame)))
            await low.wait_for_streams(2)
            for tenant in (LOW_TENANT, HIGH_TENANT):
                assert await found.answer(tenant) == TEXT
        assert high.streams == 1
        [because] = [line["because"] for line in logs if line["event"] == "link_rejected"]
        assert because.startswith(reason)
        assert not [line for line in logs if line["event"] == "frame_failed"]


async def test_a_silent_replica_of_several_answers_no_stranger_and_another_one_does():
    async with partitioned_mesh(claims(LOW), claims(HIGH), **FAST_OUTAGE) as found:
        assert await found.answer(HIGH_TENANT) == TEXT
        for replica in found.replicas:
            replica.ignored = {"identify"}
        asking = asyncio.create_task(found.answer(NEWCOMER))
        async with asyncio.timeout(30):
            while not any(NEWCOMER in replica.identified for replica in found.replicas):  # noqa: ASYNC110
                await asyncio.sleep(0)
        [silent] = [replica for replica in found.replicas if NEWCOMER in replica.identified]
        [other] = [replica for replica in found.replicas if replica is not silent]
        other.ignored = set()
        assert await asking == TEXT
        assert (silent.identified.count(NEWCOMER), other.identified.count(NEWCOMER)) == (1, 1)
