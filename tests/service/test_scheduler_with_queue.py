"""A real scheduler and a real queue shard between edges and workers that the test drives."""

import asyncio
from collections import defaultdict
from contextlib import suppress

import grpc
import pytest

from penstock.chassis.channels import channel
from penstock.chassis.errors import error_from_rpc
from penstock.chassis.streams.endpoint import StreamEndpoint
from penstock.chassis.streams.protocol import HIGHEST_VERSION
from penstock.mesh.v1.queue_pb2 import DispatchRequest, DispatchResponse, SubmitResponse
from penstock.mesh.v1.scheduler_pb2 import (
    AttachRequest,
    AttachResponse,
    LoadReport,
    Profile,
    Released,
    RunningLease,
    ServedLease,
    Started,
)
from penstock.mesh.v1.scheduler_pb2_grpc import SchedulerServiceStub
from penstock.mesh.v1.ticket_pb2 import PoisonReport
from penstock.queue.service import QUEUED_DELAY_S
from penstock.scheduler.service import REPORT_DELAY_S
from penstock.scheduler.snapshot import tables
from penstock.v1.stream_pb2 import Hello
from queue_streams import edge_at
from shard_mesh import PROFILE, mesh, scheduler_of, serves_one_model, shard_at, ticket, turns_until, worker_at


async def test_tickets_are_placed_only_on_workers_of_their_digest():
    async with (
        shard_at() as shard,
        scheduler_of(shard) as scheduler,
        worker_at(scheduler.address, "old-1", card_digest="old", slots=8, kv_blocks=64) as old,
        worker_at(scheduler.address, "new-1", card_digest="new", slots=8, kv_blocks=64) as new,
        edge_at(shard) as edge,
    ):
        while len(entries := (await edge.receive("catalog")).entries) < 2:
            pass
        assert {(each.model, each.card_digest, each.workers_hint, each.slots_hint) for each in entries} == {
            ("m", "old", 1, 8),
            ("m", "new", 1, 8),
        }
        edge.enqueue(*(ticket(f"t{number}", model="m@old") for number in range(4)))
        edge.enqueue(*(ticket(f"u{number}", model="m@new") for number in range(4)))
        leases = [(await edge.receive("leased")).lease for _ in range(8)]
        placed = {each.ticket_id: (each.worker_id, each.model) for each in leases}
        assert all(placed[f"t{number}"] == ("old-1", "m@old") for number in range(4))
        assert all(placed[f"u{number}"] == ("new-1", "m@new") for number in range(4))
        assert {(await old.receive("expect")).lease.model for _ in range(4)} == {"m@old"}
        assert {(await new.receive("expect")).lease.model for _ in range(4)} == {"m@new"}


async def test_among_similar_workers_one_in_the_zone_of_the_edge_is_used():
    async with (
        shard_at() as shard,
        scheduler_of(shard) as scheduler,
        worker_at(scheduler.address, "a", zone="eu-2"),
        worker_at(scheduler.address, "b", zone="eu-1"),
        edge_at(shard, zone="eu-1") as edge,
    ):
        await scheduler.until(workers=2)
        await serves_one_model(edge)
        edge.enqueue(ticket("t"))
        assert (await edge.receive("leased")).lease.worker_id == "b"
        assert [row["zone"] for row in tables(scheduler.dispatcher.fleet)["workers"]] == ["eu-2", "eu-1"]


async def rejection_of(address, *frames):
    """Return the error that ends a stream that begins with `frames`."""
    async with channel(address) as to_scheduler:
        call = SchedulerServiceStub(to_scheduler).Attach()
        for frame in frames:
            await call.write(frame)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            while await call.read() is not grpc.aio.EOF:
                pass
            raise AssertionError(await call.code())
    return error_from_rpc(failure.value)


def hello_frame():
    return AttachRequest(hello=Hello(protocol=HIGHEST_VERSION, instance_id="w", tier="worker"))


async def test_a_lease_reaches_edge_and_worker_and_its_end_frees_capacity():
    async with mesh() as (scheduler, worker, edge):
        edge.enqueue(ticket("t"))
        expect, leased = await worker.receive("expect"), await edge.receive("leased")
        lease = leased.lease
        assert (lease.lease_id, lease.worker_id, lease.worker_address) == ("s-1", "worker-1", "worker-1:1")
        assert expect.lease.lease_id == "s-1"
        assert lease.HasField("queue_wait")
        assert 0 < lease.placement_time.nanos < 1_000_000_000
        worker.send(started=Started(lease_id="s-1"))
        await scheduler.until(leases=1, leases_unstarted=0, promised_blocks=7)
        worker.released("s-1")
        await scheduler.until(leases=0, promised_blocks=0, available_leases=2)


async def test_waiting_tickets_take_slots_in_order():
    async with mesh() as (_, worker, edge):
        edge.enqueue(
            *(ticket(name, age_nanos=age * 1_000_000_000) for name, age in (("c", 2), ("a", 4), ("d", 1), ("b", 3)))
        )
        first = [(await edge.receive("leased")).lease for _ in range(2)]
        assert [lease.ticket_id for lease in first] == ["c", "a"]  # free slots do not wait for later tickets
        worker.released(first[0].lease_id)
        assert (await edge.receive("leased")).lease.ticket_id == "b"
        worker.released(first[1].lease_id)
        assert (await edge.receive("leased")).lease.ticket_id == "d"


async def test_a_withdrawn_ticket_revokes_its_unstarted_lease():
    async with mesh() as (scheduler, worker, edge):
        edge.enqueue(ticket("t"))
        await edge.receive("leased")
        edge.withdraw("t")
        assert (await worker.receive("revoke")).lease_id == "s-1"
        await scheduler.until(leases=0, promised_blocks=0)


async def test_an_unstarted_lease_is_revoked_when_it_expires():
    async with mesh() as (scheduler, worker, edge):
        edge.enqueue(ticket("t"))
        await edge.receive("leased")
        scheduler.clock.now += 5.0
        assert (await worker.receive("revoke")).lease_id == "s-1"
        await scheduler.until(leases=0, promised_blocks=0)


async def test_a_ticket_too_large_for_every_worker_is_shed():
    async with mesh() as (_, _, edge):
        edge.enqueue(ticket("t", prompt_tokens=201), ticket("u"))
        assert (await edge.receive("leased")).lease.ticket_id == "u"
        shed = await edge.receive("shed")
        assert (shed.ticket_id, shed.failure.reason) == ("t", "NO_WORKER")


async def test_a_worker_that_ends_its_stream_is_removed_and_keeps_running():
    async with mesh() as (scheduler, worker, edge):
        edge.enqueue(ticket("t"))
        await edge.receive("leased")
        worker.send(started=Started(lease_id="s-1"))
        await scheduler.until(leases_unstarted=0)
        worker.link.end("drains")
        await worker.down.wait()
        await scheduler.until(workers=0, leases=0, available_leases=0)
        assert not [frame for frame in _received(worker) if frame.WhichOneof("frame") == "revoke"]


def _received(side):
    found = []
    with suppress(asyncio.QueueEmpty):
        while True:
            found.append(side.frames.get_nowait())
    return found


async def test_an_attaching_worker_brings_its_running_leases():
    running = [RunningLease(lease_id="of-another", kv_blocks=15)]
    async with (
        shard_at() as shard,
        scheduler_of(shard) as scheduler,
        edge_at(shard) as edge,
        worker_at(scheduler.address, running=running) as worker,
    ):
        await serves_one_model(edge)
        await scheduler.until(promised_blocks=15, available_leases=1, leases=0)
        edge.enqueue(ticket("t"))
        await edge.receive("queued")
        worker.released("of-another")
        assert (await edge.receive("leased")).lease.ticket_id == "t"


async def test_a_restarted_shard_receives_catalog_and_credit():
    async with shard_at() as shard:
        pass
    async with scheduler_of(shard) as scheduler, worker_at(scheduler.address):
        await scheduler.until(workers=1, queues=0)
        for _ in range(2):
            async with shard_at(shard), edge_at(shard) as edge:
                await serves_one_model(edge)
                edge.enqueue(ticket("t"))
                assert (await edge.receive("leased")).lease.worker_id == "worker-1"
                await scheduler.until(queues=1)
            await scheduler.until(queues=0)


async def test_a_drain_ends_worker_streams_and_frees_waiting_tickets_for_others():
    async with shard_at() as shard, scheduler_of(shard) as scheduler, edge_at(shard) as edge:
        async with worker_at(scheduler.address, slots=1) as worker:
            await serves_one_model(edge)
            edge.enqueue(ticket("runs"), ticket("waits"))
            assert (await edge.receive("leased")).lease.ticket_id == "runs"
            await scheduler.service.drain()
            assert (await worker.receive("end")).reason == "drained"
        async with scheduler_of(shard) as other, worker_at(other.address, "worker-2"):
            lease = (await edge.receive("leased")).lease
            assert (lease.ticket_id, lease.worker_id) == ("waits", "worker-2")


async def test_the_workers_table_has_the_free_capacity_of_each():
    async with mesh() as (scheduler, worker, edge):
        edge.enqueue(ticket("t"))
        await edge.receive("leased")
        worker.send(load_report=LoadReport(running=1, prefill_backlog_tokens=5, tokens_per_second=80.0))
        await turns_until(lambda: tables(scheduler.dispatcher.fleet)["workers"][0]["running"])
        assert tables(scheduler.dispatcher.fleet)["workers"] == [
            {
                "worker_id": "worker-1",
                "address": "worker-1:1",
                "zone": "",
                "model": "m",
                "card_digest": "d",
                "slots": 2,
                "kv_blocks": 16,
                "leases": 1,
                "promised_blocks": 7,
                "available_leases": 1,
                "running": 1,
                "prefill_tokens": 95,
                "tokens_per_second": 80.0,
            }
        ]


@pytest.mark.parametrize("name", ["model", "card_digest", "slots", "kv_blocks", "block_size", "context_length"])
async def test_an_incomplete_profile_is_rejected(name):
    async with scheduler_of() as scheduler:
        lacking = {key: value for key, value in PROFILE.items() if key != name}
        error = await rejection_of(scheduler.address, hello_frame(), AttachRequest(profile=Profile(**lacking)))
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PROFILE_INVALID")
        assert scheduler.service.figures()["workers"] == 0


async def test_a_quarantined_worker_gets_tickets_after_its_profile():
    poison_report = PoisonReport(fingerprint=5)
    poison_report.ttl.seconds = 30
    nothing = dict.fromkeys(PROFILE)
    async with (
        scheduler_of() as scheduler,
        worker_at(scheduler.address, **nothing, poison_reports=[poison_report]) as worker,
    ):
        await turns_until(scheduler.dispatcher.poison.merged)
        assert scheduler.service.figures()["workers"] == 0
        worker.send(profile=Profile(**PROFILE))
        await scheduler.until(workers=1)
        assert not scheduler.dispatcher.poison.merged()


async def test_a_load_report_before_the_profile_is_rejected():
    async with scheduler_of() as scheduler:
        error = await rejection_of(scheduler.address, hello_frame(), AttachRequest(load_report=LoadReport(running=1)))
        assert error.reason == "PROFILE_INVALID"


async def test_a_changed_profile_is_rejected_and_removes_the_worker():
    async with scheduler_of() as scheduler:
        profile = AttachRequest(profile=Profile(**PROFILE))
        error = await rejection_of(scheduler.address, hello_frame(), profile, profile)
        assert error.reason == "PROFILE_INVALID"
        await scheduler.until(workers=0)


async def test_a_stream_without_hello_is_rejected():
    async with scheduler_of() as scheduler:
        error = await rejection_of(scheduler.address, AttachRequest(profile=Profile(**PROFILE)))
        assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "HELLO_MISSING")


@pytest.fixture
def delays(monkeypatch):
    """The delays in s with which each frame type and kind was sent."""
    found, send = defaultdict(set), StreamEndpoint.send

    def record(endpoint, frame, *, max_delay_s=0.0):
        found[type(frame), frame.WhichOneof("frame")].add(max_delay_s)
        return send(endpoint, frame, max_delay_s=max_delay_s)

    monkeypatch.setattr(StreamEndpoint, "send", record)
    return found


async def test_only_frames_that_no_receiver_waits_for_are_delayed(delays):
    async with mesh() as (_, worker, edge):
        edge.enqueue(ticket("t"))
        lease = (await edge.receive("leased")).lease
        served = ServedLease(lease_id=lease.lease_id, prompt_tokens=1, output_tokens=1)
        worker.send(released=Released(lease_ids=[lease.lease_id], served=[served]))
        await turns_until(lambda: delays[DispatchRequest, "service_report"])
    assert delays[SubmitResponse, "queued"] == {QUEUED_DELAY_S}
    assert delays[DispatchRequest, "pool_stats"] == {REPORT_DELAY_S}
    assert delays[DispatchRequest, "service_report"] == {REPORT_DELAY_S}
    at_once = [
        (SubmitResponse, "leased"),
        (DispatchResponse, "offer"),
        (DispatchRequest, "place"),
        (DispatchRequest, "credit"),
        (AttachResponse, "expect"),
    ]
    assert [delays[each] for each in at_once] == [{0.0}] * len(at_once)
