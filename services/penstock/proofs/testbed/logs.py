"""What the tiers of a local mesh have written down: their logs, and auth's ledger once auth has ended."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from penstock.proofs.checks.ledger import LedgerCharge


def read_events(folder: Path, tier: str, event: str) -> Iterator[dict[str, Any]]:
    """Every `event` in the logs of a tier's processes, over all their lives; `process` names the one."""
    needle = b'"' + event.encode() + b'"'
    for log in sorted(folder.glob(f"{tier}*.log")):
        for line in log.read_bytes().splitlines():
            if needle in line and line.startswith(b"{") and line.endswith(b"}"):
                found = orjson.loads(line)
                if found.get("event") == event:
                    yield {**found, "process": log.stem}


def unix_time(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def requests_by_ticket(folder: Path) -> dict[str, str]:
    return {each["ticket_id"]: each["request_id"] for each in read_events(folder, "edge", "ticket_done")}


def edges_by_request(folder: Path) -> dict[str, set[str]]:
    """Edges that have logged the end of each request."""
    found: dict[str, set[str]] = defaultdict(set)
    for each in read_events(folder, "edge", "ticket_done"):
        found[each["request_id"]].add(each["process"])
    return found


def read_ledger(folder: Path) -> list[LedgerCharge]:
    """Auth's own rows; auth must have ended, as it keeps the file for itself."""
    with closing(sqlite3.connect(folder / "auth.sqlite")) as books:
        rows = books.execute("SELECT request_id, prompt_tokens, output_tokens, outcome FROM ledger")
        return [LedgerCharge(*row) for row in rows]
