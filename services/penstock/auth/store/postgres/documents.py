"""Many rows as one parameter: a JSON document that PostgreSQL turns into a record set."""

from collections.abc import Iterable

import orjson

from penstock.auth.store.rows import Row

_NUL = b"\\u0000"  # no text of PostgreSQL may have it


def document(rows: Iterable[Row]) -> str:
    """Return rows as JSON: objects with the keys `c0`, `c1` and so on, and bytes as hex digits."""
    listed = [{f"c{place}": _plain(value) for place, value in enumerate(row)} for row in rows]
    encoded = orjson.dumps(listed)
    if _NUL in encoded:
        listed = [{name: without_nul(value) for name, value in row.items()} for row in listed]
        encoded = orjson.dumps(listed)
    return encoded.decode()


def without_nul(value: object) -> object:
    """Return a value with the replacement character in the place of NUL."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def record_set(types: Iterable[str]) -> str:
    """Return the FROM item with the rows of a document, whose columns have these types."""
    columns = ", ".join(f"c{place} {'text' if each == 'bytea' else each}" for place, each in enumerate(types))
    return f"json_to_recordset(%s::json) AS rows ({columns})"


def selected(types: Iterable[str]) -> str:
    """Return the columns of the FROM item as values of a table's columns."""
    return ", ".join(f"decode(c{place}, 'hex')" if each == "bytea" else f"c{place}" for place, each in enumerate(types))


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
