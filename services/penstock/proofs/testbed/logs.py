"""Reads the records of a local mesh: the logs of its tiers, and auth's ledger after auth has ended."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from penstock.local_mesh.postgres import LEDGER_FILE
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.checks.ledger import LedgerCharge
from penstock.proofs.checks.line_charges import LineCharge
from penstock.proofs.checks.quota import LedgerEntry


def read_events(folder: Path, tier: str, event: str) -> Iterator[dict[str, Any]]:
    """Yield every `event` in the logs of a tier's processes, over all restarts; `process` names the process."""
    needle = b'"' + event.encode() + b'"'
    for log in sorted(folder.glob(f"{tier}*.log")):
        for line in log.read_bytes().splitlines():
            if needle in line and line.startswith(b"{") and line.endswith(b"}"):
                record = orjson.loads(line)
                if record.get("event") == event:
                    yield {**record, "process": log.stem}


def unix_time(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def detection_delay(fault: InjectedFault, link_downs: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the s from a fault to the last `link_down` during it; None if no process detected it."""
    times = [unix_time(event) for event in link_downs]
    return max((at - fault.injected_at for at in times if fault.injected_at <= at < fault.recovered_at), default=None)


def requests_by_ticket(folder: Path) -> dict[str, str]:
    return {each["ticket_id"]: each["request_id"] for each in read_events(folder, "edge", "ticket_done")}


def edges_by_request(folder: Path) -> dict[str, set[str]]:
    """Return the edges that have logged the end of each request."""
    edges: dict[str, set[str]] = defaultdict(set)
    for each in read_events(folder, "edge", "ticket_done"):
        edges[each["request_id"]].add(each["process"])
    return edges


def read_ledger_entries(folder: Path) -> list[LedgerEntry]:
    """Return the exported ledger of a PostgreSQL server, with tenants and times; auth must have ended."""
    rows = map(orjson.loads, (folder / LEDGER_FILE).read_bytes().splitlines())
    return [
        LedgerEntry(
            reservation_id=row["reservation_id"],
            ticket_id=row["request_id"],
            tenant_id=row["tenant_id"],
            reserved_at=row["reserved_at"],
            settled_at=row["settled_at"],
            reserved_tokens=row["reserved_prompt_tokens"] + row["reserved_output_tokens"],
            prompt_tokens=row["prompt_tokens"],
            made_tokens=row["made_tokens"],
            outcome=row["outcome"],
        )
        for row in rows
    ]


def read_ledger(folder: Path) -> list[LedgerCharge]:
    """Return auth's ledger; auth must have ended, because it locks the file, and a PostgreSQL server is exported."""
    exported = folder / LEDGER_FILE
    if exported.exists():
        names = ("request_id", "prompt_tokens", "output_tokens", "outcome")
        return [
            LedgerCharge(*(row[name] for name in names))
            for row in map(orjson.loads, exported.read_bytes().splitlines())
        ]
    with closing(sqlite3.connect(folder / "auth.sqlite")) as database:
        rows = database.execute("SELECT request_id, prompt_tokens, output_tokens, outcome FROM ledger")
        return [LedgerCharge(*row) for row in rows]


def read_line_charges(folder: Path) -> Iterator[LineCharge]:
    """Yield auth's ledger by answer; auth must have ended, as for `read_ledger`."""
    names = ("answer_id", "prompt_tokens", "output_tokens", "outcome", "reserved_at")
    exported = folder / LEDGER_FILE
    if exported.exists():
        with exported.open("rb") as file:
            for row in map(orjson.loads, file):
                yield LineCharge(*(row[name] for name in names))
        return
    with closing(sqlite3.connect(folder / "auth.sqlite")) as database:
        for row in database.execute(f"SELECT {', '.join(names)} FROM ledger"):  # noqa: S608  # constants
            yield LineCharge(*row)
