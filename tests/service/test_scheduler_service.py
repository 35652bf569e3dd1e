"""A scheduler between queue shards and workers, over real streams."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from penstock.chassis.channels import channel
from penstock.chassis.errors import error_from_rpc
from penstock.chassis.observability import semconv
from penstock.chassis.streams.protocol import HIGHEST_VERSION
from penstock.mesh.v1 import scheduler_pb2
from penstock.mesh.v1.queue_pb2 import Head, OfferWithdrawn
from penstock.mesh.v1.scheduler_pb2_grpc import SchedulerServiceStub
from penstock.mesh.v1.ticket_pb2 import PoisonReport
from penstock.v1.stream_pb2 import Hello
from queue_streams import ticket as ticket_of_model
from scheduler_streams import TIMEOUT_S, scheduler_of, shard_server, worker_at

TRACE_ID = "1af7651916cd43dd8448eb211c80319c"


def ticket(ticket_id, **fields):
    return ticket_of_model(ticket_id, **{"model": "m@d", **fields})


@asynccontextmanager
async def one_of_each(**settings):
    """A shard that has received the credit of a scheduler with a worker of two slots."""
    async with (
        shard_server("queue-1") as shard,
        scheduler_of(shard, **settings) as scheduler,
        worker_at(scheduler.address) as worker,
    ):
        await shard.catalog_of("m")
        assert (await shard.receive("credit")).tickets == 2
        yield shard, scheduler, worker


async def test_a_worker_that_attaches_makes_its_model_known_and_brings_credit():
    async with shard_server("queue-1") as shard, scheduler_of(shard) as scheduler:
        await shard.catalog_of()
        async with worker_at(scheduler.address, kv_blocks=10):
            (entry,) = (await shard.receive("catalog")).entries
            assert (entry.model, entry.worker_address, entry.workers_hint) == ("m", "w1:1", 1)
            credit = await shard.receive("credit")
            assert (credit.model, credit.tickets, credit.max_ticket_tokens) == ("m@d", 2, 160)
        await shard.catalog_of()


async def test_an_offer_becomes_a_lease_that_its_worker_expects():
    async with one_of_each() as (shard, scheduler, worker):
        shard.offer(ticket("a"))
        expected = (await worker.receive("expect")).lease
        placed = (await shard.receive("place")).lease
        assert (placed.lease_id, placed.ticket_id) == (expected.lease_id, "a")
        assert (placed.worker_id, placed.worker_address) == ("w1", "w1:1")
        assert placed.ttl.ToTimedelta().total_seconds() == 5.0
        assert placed.placement_time.ToTimedelta().total_seconds() > 0
        assert scheduler.service.figures()["promised_blocks"] == 7


async def test_a_released_lease_is_new_credit_at_once():
    async with one_of_each() as (shard, scheduler, worker):
        shard.offer(ticket("a"))
        lease_id = (await shard.receive("place")).lease.lease_id
        worker.started(lease_id), worker.released(lease_id)
        assert (await shard.receive("credit")).tickets == 1
        figures = scheduler.service.figures()
        assert (figures["leases"], figures["promised_blocks"], figures["available_leases"]) == (0, 0, 2)


async def test_progress_of_a_worker_reaches_the_shard_of_the_ticket():
    async with one_of_each() as (shard, _, worker):
        shard.offer(ticket("a"))
        lease = (await shard.receive("place")).lease
        assert lease.queue_id == "queue-1"
        worker.started(lease.lease_id)
        worker.send(progress=scheduler_pb2.Progress(leases=[served(lease.lease_id, 10, 1)]))
        (report,) = (await shard.receive("service_report")).tickets
        assert (report.ticket_id, report.attempt) == ("a", lease.attempt)
        assert (report.prompt_tokens, report.output_tokens) == (10, 1)
        assert not report.ended
        ended = scheduler_pb2.Released(lease_ids=[lease.lease_id], served=[served(lease.lease_id, 10, 7)])
        worker.send(released=ended)
        (report,) = (await shard.receive("service_report")).tickets
        assert (report.output_tokens, report.ended) == (7, True)


async def test_a_shard_receives_pool_stats():
    async with one_of_each() as (shard, _, worker):
        assert (await shard.receive("pool_stats")).slots == 2
        worker.send(
            load_report=scheduler_pb2.LoadReport(running=1, tokens_per_second=100.0, prefill_tokens_per_second=900.0)
        )
        while not (stats := await shard.receive("pool_stats")).running:
            pass
        assert (stats.model, stats.tokens_per_second, stats.prefill_tokens_per_second) == ("m@d", 100.0, 900.0)


async def test_a_ticket_goes_to_the_worker_with_its_prefix():
    async with one_of_each() as (shard, scheduler, _), worker_at(scheduler.address, "w2") as second:
        second.send(prefix_cache_update=scheduler_pb2.PrefixCacheUpdate(added=[5, 6], is_snapshot=True))
        second.send(load_report=scheduler_pb2.LoadReport(running=3))
        while not (await shard.receive("pool_stats")).running:  # it has received the cache update as well
            pass
        shard.offer(ticket("a", prefix_hashes=[5, 6, 7]))
        assert (await shard.receive("place")).lease.worker_id == "w2"


def served(lease_id, prompt_tokens, output_tokens):
    return scheduler_pb2.ServedLease(lease_id=lease_id, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


async def test_an_offer_beyond_capacity_is_declined_and_one_beyond_any_worker_refused():
    async with one_of_each() as (shard, _, _):
        shard.offer(ticket("a", max_output_tokens=1_000, prompt_tokens=10))
        await shard.receive("place")
        shard.offer(ticket("b"))
        assert (await shard.receive("decline")).reason == "NO_CAPACITY"
        shard.offer(ticket("c", prompt_tokens=64 * 16))
        assert (await shard.receive("decline")).reason == "NO_WORKER"


async def test_an_unstarted_lease_is_revoked_and_its_capacity_granted_again():
    async with one_of_each(ttl=0.2) as (shard, scheduler, worker):
        shard.offer(ticket("a"))
        lease_id = (await shard.receive("place")).lease.lease_id
        assert (await worker.receive("revoke")).lease_id == lease_id
        assert (await shard.receive("credit")).tickets == 1
        assert scheduler.service.figures()["leases"] == 0


async def test_a_started_lease_does_not_expire():
    async with one_of_each(ttl=0.2) as (shard, scheduler, worker):
        shard.offer(ticket("a")), shard.offer(ticket("b"))
        first, second = [(await shard.receive("place")).lease.lease_id for _ in range(2)]
        worker.started(first)
        assert (await worker.receive("revoke")).lease_id == second
        assert scheduler.dispatcher.leases.leases.keys() == {first}


async def test_a_withdrawal_frees_an_unstarted_lease():
    async with one_of_each() as (shard, scheduler, worker):
        shard.offer(ticket("a"))
        lease_id = (await shard.receive("place")).lease.lease_id
        shard.send(offer_withdrawn=OfferWithdrawn(ticket_ids=["a"]))
        assert (await worker.receive("revoke")).lease_id == lease_id
        assert scheduler.service.figures()["promised_blocks"] == 0


async def test_a_worker_that_attaches_again_brings_its_running_leases():
    async with shard_server("queue-1") as shard, scheduler_of(shard) as scheduler:
        async with worker_at(scheduler.address) as worker:
            await shard.catalog_of("m")
            shard.offer(ticket("a"))
            lease_id = (await shard.receive("place")).lease.lease_id
            worker.started(lease_id)
            await worker.link.flush()
        await shard.catalog_of()
        assert scheduler.service.figures()["leases"] == 0
        running = [scheduler_pb2.RunningLease(lease_id=lease_id, kv_blocks=7)]
        async with worker_at(scheduler.address, running=running) as worker:
            await shard.catalog_of("m")
            assert scheduler.service.figures()["promised_blocks"] == 7
            worker.released(lease_id)
            assert (await shard.receive("credit")).tickets >= 1
            while scheduler.service.figures()["promised_blocks"]:
                await shard.receive("credit")


async def test_the_least_loaded_of_two_workers_gets_the_ticket():
    async with one_of_each() as (shard, scheduler, _), worker_at(scheduler.address, "w2"):
        await shard.catalog_of("m")
        for name in "abcd":
            shard.offer(ticket(name))
        places = [(await shard.receive("place")).lease.worker_id for _ in range(4)]
        assert sorted(places[:2]) == sorted(places[2:]) == ["w1", "w2"]


async def test_the_shard_with_the_better_head_gets_the_released_slot():
    async with (
        shard_server("queue-1") as first,
        shard_server("queue-2") as second,
        scheduler_of(first, second) as scheduler,
        worker_at(scheduler.address, slots=1) as worker,
    ):
        for shard in (first, second):
            await shard.receive("credit")
        first.offer(ticket("runs"))
        lease_id = (await first.receive("place")).lease.lease_id
        first.send(head=Head(model="m@d", waiting=1, priority=3, age_nanos=9, waiting_tokens=100))
        second.send(head=Head(model="m@d", waiting=1, priority=1, age_nanos=1, waiting_tokens=100))
        credit = await second.receive("credit")
        assert (credit.tickets, credit.return_unused) == (0, True), "idle credit is reclaimed while several shards wait"
        second.send(credit_returned={"model": "m@d", "tickets": 1})
        async with asyncio.timeout(TIMEOUT_S):  # streams have no mutual order, and the shard must not hold credit
            while any(credit.held_tickets for credit in scheduler.dispatcher.credit_books.values()):  # noqa: ASYNC110  # a turn of the loop
                await asyncio.sleep(0)
        worker.released(lease_id)
        assert (await second.receive("credit")).tickets == 1


async def test_a_worker_without_a_profile_is_rejected_with_a_message():
    async with shard_server("queue-1") as shard, scheduler_of(shard) as scheduler:
        async with channel(scheduler.address) as to_scheduler:
            call = SchedulerServiceStub(to_scheduler).Attach()
            hello = Hello(protocol=HIGHEST_VERSION, instance_id="w", tier="worker")
            await call.write(scheduler_pb2.AttachRequest(hello=hello))
            await call.write(scheduler_pb2.AttachRequest(load_report=scheduler_pb2.LoadReport()))
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                while True:
                    assert await call.read() is not grpc.aio.EOF
        assert error_from_rpc(failure.value).reason == "PROFILE_INVALID"


async def test_shards_receive_poison_reports_of_a_worker_attached_elsewhere():
    report = PoisonReport(fingerprint=5)
    report.ttl.seconds = 30
    async with (
        shard_server("queue-1") as shard,
        scheduler_of(shard) as scheduler,
        channel(scheduler.address) as to_scheduler,
    ):
        call = SchedulerServiceStub(to_scheduler).Attach()
        hello = Hello(protocol=HIGHEST_VERSION, instance_id="w", tier="worker", address="127.0.0.1:1")
        await call.write(scheduler_pb2.AttachRequest(hello=hello))
        assert not (await shard.receive("catalog")).poison_reports
        for reports in ([report], []):
            await call.write(scheduler_pb2.AttachRequest(poison_update=scheduler_pb2.PoisonUpdate(reports=reports)))
            catalog = await shard.receive("catalog")
            assert [each.fingerprint for each in catalog.poison_reports] == [each.fingerprint for each in reports]
        call.cancel()


async def test_a_drain_ends_streams_and_grants_no_more_credit():
    async with one_of_each() as (shard, scheduler, worker):
        await scheduler.service.drain()
        assert (await worker.receive("end")).reason == "drained"
        assert await shard.ended.get() is True


async def test_a_draining_scheduler_rejects_attachments():
    async with one_of_each() as (_, scheduler, worker):
        await scheduler.service.drain()
        await worker.receive("end")
        async with channel(scheduler.address) as to_scheduler:
            call = SchedulerServiceStub(to_scheduler).Attach()
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call.read()
        assert error_from_rpc(failure.value).reason == "DRAINING"


async def test_a_placement_has_a_span_in_the_tickets_trace(receiver):
    async with one_of_each() as (shard, _, _):
        shard.offer(ticket("a", traceparent=f"00-{TRACE_ID}-b7ad6b7169203331-01"))
        lease = (await shard.receive("place")).lease
        (span,) = await asyncio.to_thread(receiver.wait_for_spans, semconv.SPAN_PLACEMENT, trace_id=TRACE_ID)
        assert span.parent_id == "b7ad6b7169203331"
        assert span.attributes[semconv.PENSTOCK_LEASE_ID] == lease.lease_id
        assert span.attributes[semconv.PENSTOCK_WORKER_ID] == "w1"
