"""Queries of usage and the export of the ledger over a real server, with both stores."""

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime

import grpc
import pytest

from auth_server import auth_process, edge
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.reservation import OUTCOME_LOST
from penstock.auth.store.opening import opened_store
from penstock.auth.store.store import PutTenant
from penstock.auth.usage import reader as usage_reader
from penstock.auth.usage.query import POSTGRES, UsageFilter, UsageQuery, totals_statement
from penstock.auth.usage.reader import UsageReader
from penstock.chassis.database.location import parse_location
from penstock.chassis.errors import DeadlineExceeded, Overloaded, error_from_rpc
from penstock.v1 import admin_pb2 as pb
from penstock.v1.inference_pb2 import PRIORITY_BATCH
from store_changes import kept
from stores import PostgresStore, administer
from usage_rows import HOUR_S, START, charge, fill

DAY_S = 86_400
GROUPS = {
    "tenant": pb.USAGE_GROUP_TENANT,
    "key": pb.USAGE_GROUP_KEY,
    "model": pb.USAGE_GROUP_MODEL,
    "region": pb.USAGE_GROUP_REGION,
    "day": pb.USAGE_GROUP_DAY,
    "hour": pb.USAGE_GROUP_HOUR,
}


def usage_filter(start=START, end=START + 30 * DAY_S, **names):
    message = pb.UsageFilter(**names)
    message.start_time.FromSeconds(start)
    message.end_time.FromSeconds(end)
    return message


async def query(admin, *groups, limit=0, **chosen):
    request = pb.QueryUsageRequest(filter=usage_filter(**chosen), groups=[GROUPS[each] for each in groups], limit=limit)
    return [each async for each in admin.QueryUsage(request)]


async def usage(admin, *groups, **chosen):
    return [row for each in await query(admin, *groups, **chosen) for row in each.rows]


async def exported(admin, **chosen):
    request = pb.ExportLedgerRequest(filter=usage_filter(**chosen))
    return [each async for each in admin.ExportLedger(request)]


async def test_usage_is_grouped_and_filtered(stored):
    await fill(
        stored,
        charge(1, START + 10, region="north"),
        charge(2, START + 20, model="n", outcome="cancelled"),
        charge(3, START + HOUR_S, key="l", outcome="failed"),
        charge(4, START + DAY_S, tenant="blue", key="b", outcome="shed"),
        charge(5, START + DAY_S + 5, tenant="blue", key="b", outcome=OUTCOME_LOST),
        charge(6, START - 5),
    )
    async with auth_process(stored.location) as found:
        [total] = await usage(found.admin)
        assert (total.requests, total.output_tokens, total.cached_tokens, total.price_nanos) == (5, 15, 20, 25)
        outcomes = (total.completed, total.cancelled, total.failed, total.shed, total.lost)
        assert outcomes == (1, 1, 1, 1, 1)
        assert [(row.tenant_id, row.requests) for row in await usage(found.admin, "tenant")] == [
            ("acme", 3),
            ("blue", 2),
        ]
        by_key = await usage(found.admin, "key", "model", tenant_id="acme")
        assert [(row.key_id, row.model, row.output_tokens) for row in by_key] == [
            ("k", "m", 1),
            ("k", "n", 2),
            ("l", "m", 3),
        ]
        assert [(row.start_time.seconds, row.requests) for row in await usage(found.admin, "day")] == [
            (START, 3),
            (START + DAY_S, 2),
        ]
        assert [(row.start_time.seconds, row.requests) for row in await usage(found.admin, "hour", key_id="k")] == [
            (START, 2)
        ]
        assert [(row.region, row.requests) for row in await usage(found.admin, "region", model="m")] == [
            ("", 3),
            ("north", 1),
        ]
        assert await usage(found.admin, "model", tenant_id="none") == []
        [none] = await usage(found.admin, tenant_id="none")
        assert none.requests == 0
        until = await usage(found.admin, "hour", end=START + HOUR_S)
        assert [row.requests for row in until] == [2]


async def test_old_totals_of_days_are_part_of_the_answer(stored):
    await fill(stored, charge(1, START + 10))
    insert = "INSERT INTO daily_usage (day, tenant_id, key_id, model, region, requests, output_tokens)"
    values = "VALUES ('2026-12-31', 'acme', 'k', 'm', '', 7, 70), ('2027-01-02', 'acme', 'k', 'm', '', 1, 10)"
    if isinstance(stored, PostgresStore):
        administer(stored.location, f"{insert} {values}")
    else:
        with closing(sqlite3.connect(stored.location, isolation_level=None)) as raw:
            raw.execute(f"{insert} {values}")
    async with auth_process(stored.location) as found:
        days = await usage(found.admin, "day", start=START - DAY_S)
        assert [(row.start_time.seconds, row.requests) for row in days] == [
            (START - DAY_S, 7),
            (START, 1),
            (START + DAY_S, 1),
        ]
        assert [row.requests for row in await usage(found.admin)] == [2]
        assert [row.requests for row in await usage(found.admin, start=START - DAY_S + 1, end=START + DAY_S)] == [1]


async def test_rows_come_in_messages_of_a_bounded_size_and_up_to_the_limit(stored):
    await fill(stored, *(charge(number, START + number, key=f"k{number:04}") for number in range(1_201)))
    async with auth_process(stored.location) as found:
        parts = await query(found.admin, "key")
        assert [len(each.rows) for each in parts] == [500, 500, 201]
        assert not any(each.truncated for each in parts)
        parts = await query(found.admin, "key", limit=700)
        assert [(len(each.rows), each.truncated) for each in parts] == [(500, False), (200, True)]
        assert parts[1].rows[-1].key_id == "k0699"
        parts = await exported(found.admin)
        assert [len(each.rows) for each in parts] == [500, 500, 201]
        assert [each.total_hint for each in parts] == [1_201, 0, 0]


async def test_each_row_of_the_range_is_exported_once(stored, monkeypatch):
    monkeypatch.setattr(usage_reader, "PAGE_ROWS", 3)
    far = START - 20 * DAY_S
    within = [
        *(charge(number, START + number * HOUR_S) for number in range(1, 30)),
        *(charge(number, START + number, reserved_at=START) for number in range(30, 38)),  # of one moment
        *(charge(number, START + number, reserved_at=far + number % 2) for number in range(40, 47)),
        charge(50, START + 50, reserved_at=far, outcome=OUTCOME_LOST),
        charge(51, START + 51, model="n"),
    ]
    await fill(stored, *within, charge(60, START - 1), charge(61, START + 30 * DAY_S), charge(62, far))
    async with auth_process(stored.location) as found:
        rows = [row for each in await exported(found.admin) for row in each.rows]
        expected = [each.charge.reservation.reservation_id for each in within]
        assert sorted(row.reservation_id for row in rows) == expected
        only = [row for each in await exported(found.admin, model="n") for row in each.rows]
        assert [row.reservation_id for row in only] == ["r-000051"]
        [row] = only
        assert (row.request_id, row.tenant_id, row.key_id, row.edge, row.worker) == (
            "request-51",
            "acme",
            "k",
            "edge-1",
            "w",
        )
        assert (row.prompt_tokens, row.cached_tokens, row.output_tokens, row.price_nanos) == (10, 4, 51, 5)
        assert row.settle_time.ToDatetime(UTC) == datetime.fromtimestamp(START + 51, UTC)
        assert row.outcome == "stop"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.QueryUsageRequest(groups=[0]), "groups"),
        (pb.QueryUsageRequest(groups=[pb.USAGE_GROUP_DAY, pb.USAGE_GROUP_HOUR]), "groups"),
        (pb.QueryUsageRequest(groups=[pb.USAGE_GROUP_KEY, pb.USAGE_GROUP_KEY]), "groups"),
        (pb.QueryUsageRequest(groups=[99]), "groups"),
        (pb.QueryUsageRequest(limit=100_001), "limit"),
        (pb.QueryUsageRequest(filter=usage_filter(start=START + 1, end=START)), "filter.start_time"),
        (pb.QueryUsageRequest(filter=usage_filter(start=-1)), "filter.start_time"),
        (pb.QueryUsageRequest(filter=usage_filter(end=2**33)), "filter.start_time"),
        (pb.QueryUsageRequest(filter=pb.UsageFilter(tenant_id="a" * 257)), "filter.tenant_id"),
        (pb.QueryUsageRequest(filter=pb.UsageFilter(model="a\0")), "filter.model"),
    ],
)
async def test_an_invalid_query_is_rejected_with_the_field(request_, field, tmp_path):
    async with auth_process(tmp_path / "auth.sqlite") as found:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await found.admin.QueryUsage(request_).read()
        error = error_from_rpc(failure.value)
        assert (error.reason, [each.field for each in error.field_violations]) == ("INVALID_ARGUMENT", [field])


async def test_a_store_in_memory_answers_what_to_do():
    async with auth_process() as found:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await found.admin.QueryUsage(pb.QueryUsageRequest()).read()
        assert error_from_rpc(failure.value).reason == "STORE_IN_MEMORY"


async def test_a_settlement_of_an_edge_is_in_the_usage_with_its_worker_and_cached_tokens(stored):
    async with auth_process(stored.location, region="north") as found, edge(found) as stream:
        admitted = await stream.reserve(priority=PRIORITY_BATCH)
        await stream.settle(admitted.reservation_id, cached_tokens=64, worker="worker-2")
        now = int(found.clock())
        chosen = {"start": now - now % HOUR_S, "end": now + HOUR_S}
        [row] = await usage(found.admin, "region", "key", **chosen)
        assert (row.region, row.key_id, row.completed, row.output_tokens, row.cached_tokens) == (
            "north",
            "dev",
            1,
            7,
            10,
        )
        [part] = await exported(found.admin, **chosen)
        [charge] = part.rows
        assert (charge.worker, charge.region, charge.outcome) == ("worker-2", "north", "stop")
        assert charge.priority == PRIORITY_BATCH


@asynccontextmanager
async def busy_reader(stored, seconds=30.0):
    """A reader whose queries run for a long time, unless they are ended."""
    reader = UsageReader(parse_location(stored.location))
    try:
        yield reader
    finally:
        reader.close()


SLOW = {
    "postgres": "SELECT pg_sleep(30)",
    "sqlite": "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 1 FROM n WHERE i < 0",
}


@pytest.fixture
def slow(stored, monkeypatch):
    statement = SLOW["postgres" if isinstance(stored, PostgresStore) else "sqlite"]
    monkeypatch.setattr(usage_reader, "totals_statement", lambda query, dialect: (statement, {}))
    return UsageQuery(filter=UsageFilter(start=0, end=1))


async def test_a_query_that_takes_too_long_ends(stored, slow):
    await fill(stored, charge(1, START))
    async with busy_reader(stored) as reader:
        with pytest.raises(DeadlineExceeded) as failure:
            await reader.query(slow, timeout=0.2)
        assert failure.value.reason == "QUERY_TIMEOUT"


async def test_a_cancelled_query_ends_at_the_store_and_gives_its_place_back(stored, slow):
    await fill(stored, charge(1, START))
    async with busy_reader(stored) as reader, asyncio.timeout(20):
        running = [asyncio.create_task(reader.query(slow)) for _ in range(usage_reader.MAX_QUERIES)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as failure:
            await reader.query(slow)
        assert failure.value.reason == "TOO_MANY_QUERIES"
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        while reader._slots._value < usage_reader.MAX_QUERIES:  # noqa: ASYNC110  # the threads end
            await asyncio.sleep(0.01)


async def test_a_caller_that_leaves_ends_its_query_at_the_store(stored, slow):
    await fill(stored, charge(1, START))
    async with auth_process(stored.location) as found, asyncio.timeout(20):
        running = {}
        while await answer_of(found.admin) != "TOO_MANY_QUERIES":
            # The question may have taken the place of a call, which was rejected.
            running = {call: task for call, task in running.items() if not (task.done() and task.exception())}
            while len(running) < usage_reader.MAX_QUERIES:
                call = found.admin.QueryUsage(pb.QueryUsageRequest())
                running[call] = asyncio.create_task(call.read())
            await asyncio.sleep(0.01)
        for call in running:
            call.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)
        while await answer_of(found.admin) == "TOO_MANY_QUERIES":  # noqa: ASYNC110  # the threads end
            await asyncio.sleep(0.01)


async def answer_of(admin):
    """Return the reason with which a query with a short deadline ends."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await admin.QueryUsage(pb.QueryUsageRequest(), timeout=0.05).read()
    return error_from_rpc(failure.value).reason


async def test_changes_are_written_while_a_query_runs(stored, slow):
    async with opened_store(stored.location) as (store, _), busy_reader(stored) as reader, asyncio.timeout(20):
        await kept(store, PutTenant(Tenant(tenant_id="acme")))
        running = asyncio.create_task(reader.query(slow))
        await asyncio.sleep(0)
        for number in range(50):
            await kept(store, charge(number, START))
        assert not running.done()
        running.cancel()


async def test_a_month_of_a_tenant_never_scans_rows(database):
    """The statement names totals alone, and finds those of the tenant over the key of the table."""
    await fill(PostgresStore(database), charge(1, START))
    administer(
        database,
        f"""INSERT INTO hourly_usage (tenant_id, hour, key_id, model, region, requests)
        SELECT 'tenant-' || t, {START} + h * 3600, 'k', 'm', '', 1
        FROM generate_series(1, 50) AS t, generate_series(0, 719) AS h""",
        "ANALYZE hourly_usage",
    )
    month = UsageFilter(start=START, end=START + 30 * DAY_S, tenant_id="tenant-7")
    for groups in (("model",), ("day",), ("key_id", "hour"), ()):
        statement, values = totals_statement(UsageQuery(filter=month, groups=groups), POSTGRES)
        for name, value in values.items():
            statement = statement.replace(f"%({name})s", f"'{value}'" if isinstance(value, str) else str(value))
        plan = "\n".join(line for (line,) in administer(database, f"EXPLAIN {statement}"))
        assert "ledger" not in plan
        assert "hourly_usage_pkey" in plan, plan
        assert "Seq Scan on hourly_usage" not in plan
