"""`penstock usage` against a real auth: tables, CSV, JSON and exports."""

import asyncio
import csv
import importlib.util
import io
import json
import sys
from datetime import UTC, datetime
from decimal import Decimal

import click
import pytest
from click.testing import CliRunner

from auth_server import auth_process
from penstock.auth.store.opening import opened_store
from penstock.auth.store.store import PutTotals
from penstock.auth.store.totals import RegionTotal
from penstock.cli.__main__ import cli
from penstock.cli.tables import stdout_console
from penstock.cli.usage import export as export_module
from penstock.cli.usage.ranges import UtcTime, usage_filter
from penstock.v1.inference_pb2 import PRIORITY_BATCH
from store_changes import kept
from usage_rows import HOUR_S, START, charge, fill

pytestmark = pytest.mark.usefixtures("_wide_output")
RANGE = ("--from", "2027-01-01", "--to", "2027-02-01")


@pytest.fixture
def _wide_output(monkeypatch):
    """Tables are not cut, whatever the terminal of the test run is."""
    monkeypatch.setattr(stdout_console, "width", 160)


async def run(found, *arguments):
    command = ["usage", *arguments, "--target", found.admin_address]
    return await asyncio.to_thread(CliRunner(catch_exceptions=False).invoke, cli, command)


def charges():
    return (
        charge(1, START + 10, region="north"),
        charge(2, START + HOUR_S, model="n", outcome="cancelled"),
        charge(3, START + 30 * HOUR_S, tenant="blue", key="b", priority=PRIORITY_BATCH),
    )


async def test_a_table_has_a_line_of_totals_and_times_in_utc(stored):
    await fill(stored, *charges())
    async with auth_process(stored.location) as found:
        lines = (await run(found, "--by", "day", "--by", "tenant", *RANGE)).stdout.splitlines()
        assert lines[0].split()[:6] == ["day", "tenant", "requests", "prompt", "cached", "output"]
        assert [line.split()[:6] for line in lines[1:3]] == [
            ["2027-01-01", "acme", "2", "20", "8", "3"],
            ["2027-01-02", "blue", "1", "10", "4", "3"],
        ]
        assert lines[-1].split()[:5] == ["total", "3", "30", "12", "6"]
        assert "0.0000" in lines[1]  # a price of some nanos
        by_hour = (await run(found, "--by", "hour", *RANGE, "--tenant", "blue")).stdout.splitlines()
        assert by_hour[1].split()[0] == "2027-01-02T06:00Z"


async def test_csv_and_json_have_the_same_rows(stored):
    await fill(stored, *charges())
    async with auth_process(stored.location) as found:
        printed = await run(found, "--by", "key", "--by", "model", *RANGE, "--csv")
        rows = list(csv.DictReader(io.StringIO(printed.stdout)))
        assert [(row["key"], row["model"], row["output_tokens"]) for row in rows] == [
            ("b", "m", "3"),
            ("k", "m", "1"),
            ("k", "n", "2"),
        ]
        assert rows[0]["price"] == "0.000000005"
        as_json = json.loads((await run(found, "--by", "key", "--by", "model", *RANGE, "--json")).stdout)
        assert [{name: str(value) for name, value in row.items()} for row in as_json] == rows


async def test_rows_above_the_limit_are_named(stored):
    await fill(stored, *charges())
    async with auth_process(stored.location) as found:
        shown = await run(found, "--by", "key", "--limit", "1", *RANGE, "--csv")
        assert len(shown.stdout.splitlines()) == 2
        assert "more than 1 rows" in shown.stderr


async def test_an_export_as_csv_has_every_row_and_no_partial_file(stored, tmp_path):
    await fill(stored, *charges())
    out = tmp_path / "ledger.csv"
    async with auth_process(stored.location) as found:
        done = await run(found, "export", *RANGE, "--out", str(out))
        assert f"{out}: 3 rows" in done.stderr.replace("\n", "")
    rows = {row["reservation_id"]: row for row in csv.DictReader(io.StringIO(out.read_text()))}
    assert sorted(rows) == ["r-000001", "r-000002", "r-000003"]
    first = rows["r-000001"]
    assert (first["tenant_id"], first["region"], first["worker"], first["edge"]) == ("acme", "north", "w", "edge-1")
    assert (first["settle_time"], first["price"]) == ("2027-01-01T00:00:10.000000Z", "0.000000005")
    assert (first["prompt_tokens"], first["cached_tokens"], first["output_tokens"]) == ("10", "4", "1")
    assert [rows[each]["class"] for each in sorted(rows)] == ["", "", "batch"]
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("ledger")] == ["ledger.csv"]


async def test_the_home_shows_the_totals_of_all_regions_and_exports_its_own_rows(stored, tmp_path):
    await fill(stored, *charges())
    reported = RegionTotal(START, "acme", "k", "m", (7, 70, 0, 21, 0, 7, 0, 0, 0, 0), 1)
    async with opened_store(stored.location) as (store, _):
        await kept(store, PutTotals("us", (reported, reported._replace(key_id="l")), START))
    out = tmp_path / "ledger.csv"
    async with auth_process(stored.location, region="north") as found:
        table = await run(found, "--by", "region", *RANGE, "--csv")
        regions = list(csv.DictReader(io.StringIO(table.stdout)))
        assert [(row["region"], row["requests"]) for row in regions] == [("", "2"), ("north", "1"), ("us", "14")]
        done = await run(found, "export", *RANGE, "--out", str(out))
        printed = " ".join(done.stderr.split())
        assert "3 rows not in the file: requests in us;" in printed
        none = await run(found, "export", *RANGE, "--key", "l", "--out", str(out))
        assert "0 rows not in the file: requests in us;" in " ".join(none.stderr.split())
        blue = await run(found, "export", *RANGE, "--tenant", "blue", "--out", str(out))
        assert "not in the file" not in blue.stderr


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed (extra `parquet`)")
async def test_an_export_as_parquet_has_the_same_rows(stored, tmp_path, monkeypatch):
    from pyarrow import parquet

    monkeypatch.setattr(export_module, "ROW_GROUP_ROWS", 1)
    await fill(stored, *charges())
    async with auth_process(stored.location) as found:
        for name in ("ledger.parquet", "ledger.csv"):
            await run(found, "export", *RANGE, "--out", str(tmp_path / name))
    rows = parquet.read_table(tmp_path / "ledger.parquet").to_pylist()
    expected = list(csv.DictReader(io.StringIO((tmp_path / "ledger.csv").read_text())))
    assert [{name: as_text(value) for name, value in row.items()} for row in rows] == expected
    assert rows[0]["price"] == Decimal("0.000000005")


def as_text(value):
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return format(value.normalize(), "f") if isinstance(value, Decimal) else str(value)


async def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    async with auth_process(tmp_path / "auth.sqlite") as found:
        done = await run(found, "export", "--out", str(tmp_path / "ledger.parquet"))
    assert done.exit_code == 1
    assert "penstock[parquet]" in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01T13:30", datetime(2026, 11, 1, 13, 30, tzinfo=UTC)),
        ("2026-11-01T13:30+02:00", datetime(2026, 11, 1, 11, 30, tzinfo=UTC)),
        ("2026-11-01T13:30Z", datetime(2026, 11, 1, 13, 30, tzinfo=UTC)),
    ],
)
def test_times_are_in_utc_unless_they_have_an_offset(text, expected):
    assert UtcTime().convert(text, None, None) == expected


def test_a_range_has_30_days_of_whole_hours_unless_it_has_a_start():
    now = datetime(2026, 11, 30, 12, 34, 56, tzinfo=UTC)
    chosen = usage_filter(None, None, now=now)
    assert chosen.start_time.ToDatetime(UTC) == datetime(2026, 10, 31, 12, tzinfo=UTC)
    assert chosen.end_time.ToDatetime(UTC) == now
    with pytest.raises(click.UsageError, match="--from must not be after --to"):
        usage_filter(now, datetime(2026, 11, 1, tzinfo=UTC), now=now)
