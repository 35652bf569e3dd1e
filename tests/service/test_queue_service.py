"""A queue shard over real streams: frames, and the tickets of broken streams."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest
from google.rpc import code_pb2

from loop_watchdog import watched_loop
from otlp_receiver import attributes_of
from penstock.chassis.channels import channel
from penstock.chassis.errors import DeadlineExceeded, InvalidArgument, Overloaded, error_from_failure
from penstock.chassis.observability import semconv
from penstock.chassis.observability.metrics import REGISTRY
from penstock.chassis.observability.tenant_labels import TenantLabels
from penstock.mesh.v1.queue_pb2 import SubmitRequest
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceStub
from penstock.queue.observability import metrics
from penstock.queue.series import DEPTH, SHED, WAIT
from penstock.queue.tickets.poison_scans import MAX_DROPPED_PER_SLICE
from penstock.queue.tickets.transitions import MAX_REMOVED_PER_SLICE
from queue_shards import shard_of
from queue_streams import TIMEOUT_S, edge_at, scheduler_at, ticket

LOST_TICKETS = 4 * MAX_REMOVED_PER_SLICE
RETURNING_TICKETS = 5_000
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@asynccontextmanager
async def shard_with_both(max_depth=1_000):
    """A shard, a scheduler that serves `m`, and an edge that has received the catalog."""
    async with (
        shard_of(max_depth) as shard,
        scheduler_at(shard.address) as scheduler,
        edge_at(shard.address) as edge,
    ):
        while not (await edge.receive("catalog")).entries:
            pass
        yield shard, scheduler, edge


async def test_a_ticket_is_queued_offered_placed_and_leased():
    async with shard_with_both() as (shard, scheduler, edge):
        edge.enqueue(ticket("a", traceparent=f"00-{1:032x}-{2:016x}-01", prefix_hashes=[1, 2]))
        assert (await edge.receive("queued")).ticket_id == "a"
        assert (await scheduler.receive("head")).waiting == 1
        shard.time += 1.5
        scheduler.credit(1, max_ticket_tokens=100)
        offer = (await scheduler.receive("offer")).ticket
        sent = ticket("a", traceparent=f"00-{1:032x}-{2:016x}-01", prefix_hashes=[1, 2], predicted_output_tokens=10)
        sent.age_nanos = 1_500_000_000
        assert offer == sent
        scheduler.place("a", "lease 1")
        lease = (await edge.receive("leased")).lease
        assert (lease.lease_id, lease.worker_id, lease.queue_wait.ToTimedelta().total_seconds()) == (
            *("lease 1", "w"),
            1.5,
        )
        figures = shard.service.figures()
        assert (figures["waiting"], figures["waiting_tokens"], figures["offered"], figures["leased"]) == (0, 0, 0, 1)


async def test_waits_are_counted_in_buckets_of_seconds_and_classes_are_words(receiver):
    async with shard_with_both() as (shard, scheduler, edge):
        edge.enqueue(ticket("a"))
        await edge.receive("queued")
        shard.time += 0.02
        scheduler.credit(1, max_ticket_tokens=100)
        await scheduler.receive("offer")
        scheduler.place("a", "lease 1")
        await edge.receive("leased")
    wait = receiver.wait_for_metric(WAIT.name).histogram
    assert {tuple(point.explicit_bounds) for point in wait.data_points} == {WAIT.buckets}
    words = [attributes_of(point.attributes)["class"] for point in wait.data_points]
    assert "standard" in words
    assert set(words) <= {"interactive", "standard", "batch"}


async def test_an_edge_receives_the_catalog_at_once_and_on_change():
    async with shard_with_both() as (shard, scheduler, edge):
        async with edge_at(shard.address, "edge-2") as late:
            assert [each.model for each in (await late.receive("catalog")).entries] == ["m"]
        scheduler.serve("m", "n")
        assert [each.model for each in (await edge.receive("catalog")).entries] == ["m", "n"]


async def test_a_starting_shard_accepts_edges_after_a_scheduler_has_sent_a_model():
    async with (
        shard_of(scheduler_wait=TIMEOUT_S) as shard,
        scheduler_at(shard.address, models=()) as scheduler,
        AsyncExitStack() as stack,
    ):
        connecting = asyncio.create_task(stack.enter_async_context(edge_at(shard.address)))
        while shard.calls.in_flight < len(("scheduler", "edge")):  # noqa: ASYNC110  # a count has no event
            await asyncio.sleep(0)
        scheduler.credit(1, return_unused=True)
        await scheduler.receive("credit_returned")
        assert shard.service.figures()["edges"] == 0
        scheduler.serve("m")
        assert [each.model for each in (await (await connecting).receive("catalog")).entries] == ["m"]


async def test_a_full_queue_sheds_with_reason_and_retry_time():
    async with shard_with_both(max_depth=2) as (shard, scheduler, edge):
        scheduler.credit(0, tokens_per_second=40.0, return_unused=True)
        await scheduler.receive("credit_returned")
        edge.enqueue(ticket("a"), ticket("b"), ticket("c"))
        shed = await edge.receive("shed")
        error = error_from_failure(shed.failure)
        assert (shed.ticket_id, type(error), error.reason) == ("c", Overloaded, "QUEUE_FULL")
        assert error.retry_after == 200 / 40
        assert shard.service.figures()["shed_queue_full"] == 1


async def test_only_the_invalid_ticket_is_shed():
    async with shard_with_both() as (_, _, edge):
        edge.enqueue(ticket("bad", weight=0.0), ticket("good"))
        shed = await edge.receive("shed")
        assert (shed.ticket_id, shed.failure.reason) == ("bad", "TICKET_INVALID")
        assert isinstance(error_from_failure(shed.failure), InvalidArgument)
        assert (await edge.receive("queued")).ticket_id == "good"


async def test_an_unserved_model_is_unknown():
    async with shard_with_both() as (_, _, edge):
        edge.enqueue(ticket("a", model="x"))
        failure = (await edge.receive("shed")).failure
        assert (failure.code, failure.reason) == (code_pb2.NOT_FOUND, "MODEL_UNKNOWN")


async def test_a_ticket_is_shed_at_its_deadline():
    async with shard_with_both() as (shard, _, edge):
        edge.enqueue(ticket("a", time_left_nanos=5_000_000_000))
        await edge.receive("queued")
        shard.time += 5
        assert isinstance(error_from_failure((await edge.receive("shed")).failure), DeadlineExceeded)


async def test_a_withdrawal_is_acknowledged_and_reaches_the_scheduler():
    async with shard_with_both() as (_, scheduler, edge):
        scheduler.credit(2)
        edge.enqueue(ticket("offered"), ticket("leased", age_nanos=1_000_000_000))
        for _ in range(2):
            await scheduler.receive("offer")
        scheduler.place("leased")
        await edge.receive("leased")
        edge.enqueue(ticket("waits"))
        edge.withdraw("offered", "leased", "waits", "unknown")
        assert list((await edge.receive("withdrawn")).ticket_ids) == ["offered", "leased", "waits", "unknown"]
        assert list((await scheduler.receive("offer_withdrawn")).ticket_ids) == ["offered", "leased"]


async def test_offers_go_to_another_scheduler_when_a_stream_breaks():
    async with shard_with_both() as (shard, survivor, edge):
        async with scheduler_at(shard.address, "scheduler-2") as victim:
            victim.credit(2)
            edge.enqueue(ticket("a"), ticket("b"))
            assert [(await victim.receive("offer")).ticket.ticket_id for _ in range(2)] == ["a", "b"]
            survivor.credit(2)
        assert [(await survivor.receive("offer")).ticket.ticket_id for _ in range(2)] == ["a", "b"]


async def test_the_loss_of_an_edge_stream_withdraws_its_tickets():
    async with shard_with_both() as (shard, scheduler, edge):
        async with edge_at(shard.address, "edge-2") as victim:
            victim.enqueue(ticket("offered"), ticket("waits"))
            scheduler.credit(1)
            await scheduler.receive("offer")
            edge.enqueue(ticket("stays"))
            await edge.receive("queued")
        assert list((await scheduler.receive("offer_withdrawn")).ticket_ids) == ["offered"]
        scheduler.credit(5)
        assert (await scheduler.receive("offer")).ticket.ticket_id == "stays"
        assert shard.service.figures()["waiting"] == 0


async def test_the_loss_of_an_edge_with_many_tickets_does_not_hold_the_loop():
    async with shard_with_both(max_depth=100_000) as (shard, scheduler, edge):
        edge.enqueue(ticket("stays"))
        await edge.receive("queued")
        async with edge_at(shard.address, "edge-2") as victim:
            for number in range(LOST_TICKETS):
                victim.enqueue(ticket(f"t{number}"))
            for _ in range(LOST_TICKETS):
                await victim.receive("queued")
            with watched_loop(lambda: len(shard.book.tickets)) as watchdog:
                victim.link.close("the test ends the edge")
                scheduler.credit(1)
                assert (await scheduler.receive("offer")).ticket.ticket_id == "stays"
                while (await scheduler.receive("head")).waiting:
                    pass
        assert sum(watchdog.changes) == -LOST_TICKETS
        assert min(watchdog.changes) >= -(MAX_REMOVED_PER_SLICE + MAX_DROPPED_PER_SLICE)


async def test_offers_go_out_while_the_tickets_of_a_lost_shard_arrive():
    async with shard_with_both(max_depth=1) as (shard, scheduler, edge):
        scheduler.credit(1)
        for number in range(RETURNING_TICKETS):
            edge.enqueue(ticket(f"t{number}", readmitted=True, age_nanos=10**9))
        assert (await scheduler.receive("offer")).ticket.ticket_id == "t0"
        assert len(shard.book.tickets) < RETURNING_TICKETS
        for number in range(RETURNING_TICKETS):
            assert (await edge.receive("queued")).ticket_id == f"t{number}"


async def test_credit_to_return_is_answered_with_the_unused_part():
    async with shard_with_both() as (_, scheduler, edge):
        edge.enqueue(ticket("a"))
        await edge.receive("queued")
        scheduler.credit(3, return_unused=True)
        assert (await scheduler.receive("offer")).ticket.ticket_id == "a"
        assert (await scheduler.receive("credit_returned")).tickets == 2


async def test_a_drain_sends_end_to_edges_and_schedulers():
    async with shard_with_both() as (shard, scheduler, edge):
        shard.service.drain()
        assert (await edge.receive("end")).reason == "drained"
        assert (await scheduler.receive("end")).reason == "drained"


async def test_a_stream_without_hello_is_rejected():
    async with shard_of() as shard, channel(shard.address) as to_shard:
        call = QueueServiceStub(to_shard).Submit()
        await call.write(SubmitRequest())
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "hello" in await call.details()


@pytest.mark.parametrize("ends", ["leased", "withdrawn"])
async def test_each_ticket_has_one_span_of_its_wait_in_its_own_trace(receiver, ends):
    trace_id = TRACE_ID if ends == "leased" else TRACE_ID[::-1]
    async with shard_with_both() as (shard, scheduler, edge):
        edge.enqueue(ticket("a", traceparent=f"00-{trace_id}-b7ad6b7169203331-01"))
        await edge.receive("queued")
        shard.time += 2.0
        if ends == "leased":
            scheduler.credit(1), await scheduler.receive("offer"), scheduler.place("a")
        else:
            edge.withdraw("a")
        await edge.receive(ends)
        (span,) = await asyncio.to_thread(receiver.wait_for_spans, semconv.SPAN_QUEUE_WAIT, trace_id=trace_id)
        assert span.parent_id == "b7ad6b7169203331"
        assert span.end_unix_nano - span.start_unix_nano == 2_000_000_000
        assert span.attributes[semconv.PENSTOCK_TICKET_ID] == "a"
        assert span.attributes.get(semconv.PENSTOCK_REASON, "") == ("" if ends == "leased" else "WITHDRAWN")


@pytest.mark.parametrize(("time_left", "ends"), [(1.5, 1.5), (0.0, 2.0)], ids=["at the deadline", "at the withdrawal"])
async def test_a_wait_span_ends_with_its_request(receiver, time_left, ends):
    trace_id = f"{0xA0 + round(4 * ends):032x}"
    async with shard_with_both() as (shard, _, edge):
        left = round(time_left * 1e9)
        edge.enqueue(ticket("a", traceparent=f"00-{trace_id}-b7ad6b7169203331-01", time_left_nanos=left))
        await edge.receive("queued")
        shard.time += 2.0
        edge.withdraw("a")
        await edge.receive("withdrawn")
        (span,) = await asyncio.to_thread(receiver.wait_for_spans, semconv.SPAN_QUEUE_WAIT, trace_id=trace_id)
        assert span.end_unix_nano - span.start_unix_nano == pytest.approx(ends * 1e9, abs=1_000)


@pytest.fixture
def fresh_tenants(monkeypatch):
    """The tenant of `ticket` alone has a label: those of other tests in this process may have taken all."""
    labels = TenantLabels()
    labels.record(ticket("a").tenant_id)
    monkeypatch.setattr(metrics, "_tenants", labels)


@pytest.mark.usefixtures("fresh_tenants")
async def test_depths_are_observed_by_model_class_and_tenant():
    async with shard_with_both() as (shard, _, edge):
        edge.enqueue(ticket("a"), ticket("b"))
        await edge.receive("queued")
        depths = {each.labels: each.value for each in shard.service.observations() if each.series is DEPTH}
    model = ticket("a").model.partition("@")[0]
    assert depths.pop((model, "standard", ticket("a").tenant_id)) == 2
    assert set(depths.values()) == {0}, "classes without tickets are 0, not absent"


@pytest.mark.usefixtures("fresh_tenants")
async def test_rejections_are_counted_by_model_class_tenant_and_reason():
    def counted(model):
        labels = {"model": model, "class": "standard", "tenant": "of rejections", "reason": shed.failure.reason}
        return REGISTRY.get_sample_value(SHED.prometheus_name, labels)

    async with shard_with_both(max_depth=1) as (_, _, edge):
        rejected = [ticket(each, tenant_id="of rejections") for each in "abc"]
        edge.enqueue(*rejected)
        shed = [await edge.receive("shed") for _ in range(2)][-1]
        assert counted(rejected[0].model.partition("@")[0]) == 2
        edge.enqueue(ticket("d", tenant_id="of rejections", model="made up"))
        shed = await edge.receive("shed")
        assert counted("") == 1
        assert counted("made up") is None
