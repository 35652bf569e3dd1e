"""`penstock usage bench`: the ledger with a month of rows, in a database of PostgreSQL."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bench.ledger.rows import LedgerPlan
from penstock.bench.ledger.run import MonthQueries, fill, month_start, new_schema
from penstock.bench.ledger.settlements import SettlementLoad
from penstock.bench.progress import progress_reporter
from penstock.bench.tables import new_table
from penstock.chassis.config import ConfigError
from penstock.cli.tables import stderr_console, stdout_console
from penstock.local_mesh.postgres import LocalPostgres

# Of a server that the command starts: a small one, with the defaults of PostgreSQL for what a commit promises.
SERVER_OPTIONS = ("-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBenchOptions:
    """The options of `penstock usage bench`."""

    store: str
    plan: LedgerPlan
    seconds: float
    clients: int
    as_json: bool


async def bench_ledger(options: LedgerBenchOptions) -> None:
    """Run the benchmark and print its figures. Raises ConfigError."""
    if options.store and not options.store.startswith(("postgresql://", "postgres://")):
        raise ConfigError("--store must be a URL of PostgreSQL, such as postgresql://user@host/database")
    with ExitStack() as stack:
        url = options.store or stack.enter_context(_local_server())
        own_url = stack.enter_context(new_schema(url))
        report = stack.enter_context(progress_reporter(stderr_console))
        start = month_start(options.plan, time.time())
        figures = await asyncio.to_thread(fill, own_url, options.plan, start, report)
        figures |= await MonthQueries(own_url, options.plan, start).measure(report)
        figures |= await SettlementLoad(own_url, options.plan, options.seconds, options.clients).measure(report)
    if options.as_json:
        stdout_console.print_json(data=figures)
    else:
        _show(figures)


@contextmanager
def _local_server() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="penstock-ledger-") as folder:
        server = LocalPostgres(Path(folder), SERVER_OPTIONS)
        with server.running():
            yield server.url()


def _show(figures: dict[str, Any]) -> None:
    table = new_table("figure", numbers=("value",))
    for name, value in figures.items():
        if isinstance(value, dict):
            for part, seconds in value.items():
                table.add_row(f"{name.removesuffix('_s')} {part}", f"{seconds * 1e3:,.1f} ms")
        elif isinstance(value, bool):
            table.add_row(name, "yes" if value else "no")
        elif name.endswith("settlement_s"):
            table.add_row(name.removesuffix("_s"), f"{value * 1e6:,.0f} µs")
        else:
            table.add_row(name, f"{value:,.1f}" if isinstance(value, float) else f"{value:,}")
    stdout_console.print(table)
