"""`penstock usage export`: the rows of the ledger in a file, written while they arrive."""

import csv
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import click

from penstock.bench.progress import progress_reporter
from penstock.cli.admin import AdminTarget
from penstock.cli.tables import stderr_console
from penstock.cli.usage.query import money, utc_text
from penstock.mesh.class_names import class_name
from penstock.v1 import admin_pb2 as pb

TEXTS = ("reservation_id", "request_id", "tenant_id", "key_id", "model", "region", "edge", "worker", "answer_id")
TIMES = ("reserve_time", "settle_time")
TOKENS = ("prompt_tokens", "cached_tokens", "output_tokens")
COLUMNS = (*TEXTS, *TIMES, *TOKENS, "price", "outcome", "class")
PRICE_DIGITS = 28  # of the Parquet column, 9 of them after the point
ROW_GROUP_ROWS = 50_000  # rows of a Parquet file that are in memory at a time


class LedgerWriter(Protocol):
    """Writes rows to a file."""

    def write(self, rows: Iterable[pb.LedgerRow]) -> None: ...

    def close(self) -> None:
        """Write the end of the file."""


async def export_ledger(target: AdminTarget, chosen: pb.UsageFilter, out: Path, file_format: str) -> None:
    """Write a file, which has its name once it is complete."""
    request, written = pb.ExportLedgerRequest(filter=chosen), 0
    with progress_reporter(stderr_console) as report, _complete_file(out, file_format) as writer:
        total, others = 0, ""
        async with target.stub() as admin:
            async for part in admin.ExportLedger(request, metadata=target.metadata):
                writer.write(part.rows)
                written += len(part.rows)
                total = total or part.total_hint
                others = others or ", ".join(part.other_regions)
                report(f"{written:,} of about {max(total, written):,} rows")
    stderr_console.print(f"{out}: {written:,} rows")
    if others:
        text = "their totals are here, and their rows in their own ledgers; export those with `--target` of their auth"
        stderr_console.print(f"not in the file: requests in {others}; {text}")


@contextmanager
def _complete_file(out: Path, file_format: str) -> Iterator[LedgerWriter]:
    part = out.with_name(f"{out.name}.part")
    try:
        writer = ParquetFile(part) if file_format == "parquet" else CsvFile(part)
        try:
            yield writer
        finally:
            writer.close()
        os.replace(part, out)  # noqa: PTH105  # atomic, as Path.replace is
    finally:
        part.unlink(missing_ok=True)


class CsvFile:
    """A CSV file with a header. Times have microseconds and are in UTC; a price is a decimal number."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(COLUMNS)

    def write(self, rows: Iterable[pb.LedgerRow]) -> None:
        self._writer.writerows(_csv_row(row) for row in rows)

    def close(self) -> None:
        self._file.close()


def _csv_row(row: pb.LedgerRow) -> list[str | int]:
    times = (utc_text(getattr(row, each), timespec="microseconds") for each in TIMES)
    tokens = (getattr(row, each) for each in TOKENS)
    texts = (getattr(row, each) for each in TEXTS)
    return [*texts, *times, *tokens, money(row.price_nanos), row.outcome, _class(row)]


def _class(row: pb.LedgerRow) -> str:
    """Return the granted class; empty if the row has none."""
    return class_name(row.priority) if row.priority else ""


class ParquetFile:
    """A Parquet file, written in groups of rows."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ModuleNotFoundError:
            text = "Parquet needs the Python package pyarrow: pip install 'penstock[parquet]', or use --format csv"
            raise click.ClickException(text) from None
        self._arrow = pa
        self._schema = pa.schema(
            [
                *((each, pa.string()) for each in TEXTS),
                *((each, pa.timestamp("us", tz="UTC")) for each in TIMES),
                *((each, pa.int64()) for each in TOKENS),
                ("price", pa.decimal128(PRICE_DIGITS, 9)),
                ("outcome", pa.string()),
                ("class", pa.string()),
            ]
        )
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._columns: dict[str, list[Any]] = {each: [] for each in COLUMNS}

    def write(self, rows: Iterable[pb.LedgerRow]) -> None:
        columns = self._columns
        for row in rows:
            for each in (*TEXTS, *TOKENS, "outcome"):
                columns[each].append(getattr(row, each))
            for each in TIMES:
                columns[each].append(getattr(row, each).ToMicroseconds())
            columns["price"].append(_decimal(row.price_nanos))
            columns["class"].append(_class(row))
        if len(columns["outcome"]) >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if not self._columns["outcome"]:
            return
        arrays = [self._arrow.array(self._columns[each.name], type=each.type) for each in self._schema]
        self._writer.write_table(self._arrow.table(arrays, schema=self._schema))
        self._columns = {each: [] for each in COLUMNS}


def _decimal(nanos: int) -> Decimal:
    return Decimal(nanos).scaleb(-9)
