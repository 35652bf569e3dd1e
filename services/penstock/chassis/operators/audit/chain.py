"""Lines of an audit log and the chain that joins them. Pure: it opens no file and reads no clock.

A line is a JSON object. `previous` is the SHA-256 of the line before it, without its newline, and `seq` its number, so
that a line which was changed, removed, inserted or moved is found at the line after it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

GENESIS = "0" * 64  # `previous` of the first line of a chain
BEGIN = "log.begin"  # action of the first line of a file
RESUME = "log.resume"  # action of the first line of a process that continues a file
MAX_TEXT = 256  # characters of one parameter

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An action, before it has a place in the chain."""

    time: str  # ISO 8601, UTC
    tier: str
    instance: str
    actor: str
    peer: str
    action: str
    result: str
    parameters: Mapping[str, Any]
    begun: int = 0  # `seq` of the line that recorded the start of the action; 0: none


@dataclass(frozen=True, slots=True)
class Chain:
    """The end of a chain: the number and the hash of its last line."""

    seq: int = 0
    head: str = GENESIS

    def encode(self, entry: Entry) -> bytes:
        """Return the next line, with its newline."""
        record: Record = {"seq": self.seq + 1, "time": entry.time, "tier": entry.tier, "instance": entry.instance}
        record |= {"actor": entry.actor, "peer": entry.peer, "action": entry.action}
        record |= {"parameters": _shortened(entry.parameters), "result": entry.result}
        if entry.begun:
            record["begun"] = entry.begun
        return orjson.dumps({**record, "previous": self.head}) + b"\n"

    def after(self, line: bytes) -> "Chain":
        """Return the chain with `line` as its last line."""
        return Chain(self.seq + 1, digest(line))


def digest(line: bytes) -> str:
    """Return the hash of a line, with or without its newline."""
    return hashlib.sha256(line.removesuffix(b"\n")).hexdigest()


def parse(line: bytes) -> Record | None:
    """Return the record of a line; None if the line is not a whole record."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict) or type(found.get("seq")) is not int or not isinstance(found.get("previous"), str):
        return None
    return found


def torn_bytes_of(record: Record) -> int:
    """Return the length of the incomplete line before this record, 0 if there was none."""
    parameters = record.get("parameters")
    found = parameters.get("torn_bytes", 0) if record.get("action") == RESUME and isinstance(parameters, dict) else 0
    return found if type(found) is int else 0


def _shortened(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: f"{value[:MAX_TEXT]}… ({len(value)} characters)"
        if isinstance(value, str) and len(value) > MAX_TEXT
        else value
        for name, value in parameters.items()
    }
