"""Commands for usage: totals, the export of the ledger, and a benchmark of its store."""

from asyncio import run as run_async
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import FiniteFloat, OutputFile, find_tier, json_option
from penstock.cli.usage.ranges import UtcTime, usage_filter

GROUPS = ("tenant", "key", "model", "region", "day", "hour")
MAX_ROWS = 100_000

RANGE_OPTIONS = (
    click.option("--from", "start", type=UtcTime(), help="first date or time, in UTC; default: 30 days before --to"),
    click.option("--to", "end", type=UtcTime(), help="end, which is not included; default: now"),
    click.option("--tenant", "tenant_id", default="", help="only usage of this tenant"),
    click.option("--key", "key_id", default="", metavar="KEY_ID", help="only usage of this key"),
    click.option("--model", default="", help="only usage of this model"),
    click.option(
        "--target", default="", metavar="ADDRESS", help="admin_listen of an auth process: unix:PATH or HOST:PORT"
    ),
)


def range_options(command: Any) -> Any:
    for option in reversed(RANGE_OPTIONS):
        command = option(command)
    return command


@click.group(invoke_without_command=True)
@click.option("--by", "groups", type=click.Choice(GROUPS), multiple=True, help="repeatable; default: tenant")
@range_options
@click.option("--limit", type=click.IntRange(1, MAX_ROWS), default=10_000, show_default=True, help="most rows")
@click.option("--csv", "as_csv", is_flag=True, help="print CSV")
@json_option
@click.pass_context
def usage(context: click.Context, /, **given: Any) -> None:
    """Show requests, tokens and price by tenant, key, model, region, day or hour (UTC)."""
    if context.invoked_subcommand is None:
        _show(**given)


def _show(*, groups: tuple[str, ...], limit: int, target: str, as_csv: bool, as_json: bool, **chosen: Any) -> None:
    from penstock.cli.admin import AdminTarget
    from penstock.cli.usage.query import UsageOptions, show_usage

    groups = tuple(dict.fromkeys(groups)) or ("tenant",)
    if {"day", "hour"} <= set(groups):
        raise click.UsageError("--by takes day or hour, not both")
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other")
    options = UsageOptions(groups=groups, filter=_filter(**chosen), limit=limit, as_csv=as_csv)
    run_async(show_usage(AdminTarget(target=find_tier("auth", target), as_json=as_json), options))


@usage.command()
@range_options
@click.option("--out", type=OutputFile(), required=True, help="file that is written")
@click.option("--format", "file_format", type=click.Choice(["csv", "parquet"]), help="default: by the file's suffix")
def export(target: str, out: Path, file_format: str | None, **chosen: Any) -> None:
    """Write the rows of the ledger of one region that were settled in a time range, one per request."""
    from penstock.cli.admin import AdminTarget
    from penstock.cli.usage.export import export_ledger

    file_format = file_format or ("parquet" if out.suffix.lower() == ".parquet" else "csv")
    admin = AdminTarget(target=find_tier("auth", target), as_json=False)
    run_async(export_ledger(admin, _filter(**chosen), out, file_format))


@usage.command()
@click.option("--store", default="", metavar="URL", help="PostgreSQL; empty: a server that is started for the run")
@click.option("--rows", type=click.IntRange(1_000, 1_000_000_000), default=1_000_000, show_default=True)
@click.option("--tenants", type=click.IntRange(1, 100_000), default=200, show_default=True)
@click.option("--keys", type=click.IntRange(1, 100_000), default=400, show_default=True)
@click.option("--models", type=click.IntRange(1, 1_000), default=6, show_default=True)
@click.option("--seconds", type=FiniteFloat(1, 3600), default=20.0, show_default=True, help="of settlements")
@click.option("--clients", type=click.IntRange(1, 1024), default=128, show_default=True, help="that settle at once")
@click.option("--seed", default=0, show_default=True)
@json_option
def bench(store: str, seconds: float, clients: int, as_json: bool, **plan: int) -> None:
    """Measure the ledger with a month of rows: COPY, queries of tenants' months, and settlements.

    The tables are in a schema of their own, which is dropped at the end. 20,000,000 rows take about 15 GB meanwhile.
    """
    from penstock.bench.ledger.rows import LedgerPlan
    from penstock.cli.usage.bench import LedgerBenchOptions, bench_ledger

    if plan["keys"] < plan["tenants"]:
        raise click.UsageError("--keys must be at least --tenants, as each tenant has a key")
    options = LedgerBenchOptions(
        store=store, plan=LedgerPlan(**plan), seconds=seconds, clients=clients, as_json=as_json
    )
    run_async(bench_ledger(options))


def _filter(*, start: datetime | None, end: datetime | None, **names: str) -> Any:
    return usage_filter(start, end, now=datetime.now(UTC), **names)


USAGE_COMMANDS = (usage,)
