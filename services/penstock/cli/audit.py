"""`penstock audit`: check and show audit logs."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from penstock.bench.tables import new_table
from penstock.chassis.operators.audit.chain import Record, parse
from penstock.chassis.operators.audit.verify import Report, Verification
from penstock.cli.tables import stderr_console, stdout_console

STDIN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which lines are shown. An empty field: all."""

    since: datetime | None = None
    actor: str = ""
    action: str = ""

    def is_shown(self, record: Record) -> bool:
        """Whether a record is shown; a prefix of the action is enough, such as `keys`."""
        if self.since and _time_of(record) < self.since:
            return False
        if self.actor and record.get("actor") != self.actor:
            return False
        return str(record.get("action", "")).startswith(self.action)


def verify(files: Sequence[str], head: str, *, as_json: bool) -> int:
    """Check the files in this order as one log; return the exit code: 1 if the chain is broken."""
    verification = Verification(head)
    for path in files:
        with _opened(path) as lines:
            verification.add_file(lines)
    report = verification.finish()
    if as_json:
        stdout_console.print_json(data=asdict(report))
    else:
        _print_report(report)
    return 1 if report.broken_at else 0


def show(path: str, shown: AuditFilter, *, as_json: bool) -> None:
    """Print the lines that `shown` admits. The chain is not checked."""
    with _opened(path) as lines:
        records = [record for line in lines if (record := parse(line)) and shown.is_shown(record)]
    if as_json:
        stdout_console.print_json(data=records)
        return
    table = new_table("seq", "time", "process", "actor", "peer", "action", "result", "parameters")
    for each in records:
        parameters = " ".join(f"{name}={value}" for name, value in dict(each.get("parameters", {})).items())
        names = ("seq", "time", "instance", "actor", "peer", "action", "result")
        table.add_row(*(str(each.get(name, "")) for name in names), parameters)
    stdout_console.print(table)


def _print_report(report: Report) -> None:
    if report.continues:
        stdout_console.print(f"continues a file whose last line has the hash {report.continues}")
    if report.torn_lines:
        numbers = ", ".join(map(str, report.torn_lines))
        stdout_console.print(f"cut off by a crash, and chained over: line {numbers}")
    if report.is_incomplete:
        stdout_console.print("the last line is incomplete: a crash, or a write in progress")
    if report.broken_at:
        stderr_console.print(f"broken at line {report.broken_at}: {report.reason}", markup=False)
        return
    stdout_console.print(f"{report.lines} lines, whole; the last one has the hash {report.head}")


def _time_of(record: Record) -> datetime:
    """Return the time of a record; the first possible time if it has none."""
    try:
        return datetime.fromisoformat(str(record.get("time", "")))
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STDIN:
        yield sys.stdin.buffer
        return
    with Path(path).open("rb") as file:
        yield file
