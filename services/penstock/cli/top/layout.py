"""Tables of text that fit a width: columns are left out by rank, and names are shortened in their middle. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len

from penstock.cli.top.frame import Row

SEPARATOR = "  "
MIN_NAME_CHARS = 12  # to which a name is shortened before a column is left out
SORT_MARKS = "▲", "▼"  # ascending, descending


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table. Columns of the highest rank are left out first; those of rank 0 are always shown."""

    head: str
    key: str  # of the value in a row
    text: Callable[[Any], str] = str
    rank: int = 0
    is_number: bool = False

    def cell(self, row: Row) -> str:
        value = row.get(self.key)
        return printable(self.text(value)) if value is not None else "-" if self.is_number else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """One table of a frame."""

    name: str
    rows: str  # key of the frame
    ids: tuple[str, ...]  # keys whose values identify a row
    columns: tuple[Column, ...]
    order: tuple[str, ...] = ()  # keys by which rows are ordered, the highest value first; empty: as in the frame
    kind: str = "first"  # of the rows that are shown if there are more
    note: str = ""  # explains the columns
    child: str = ""  # name of the table that lists the parts of a row; empty: a row has none
    link: tuple[str, ...] = ()  # keys in which the rows of `child` equal their row

    def ordered(self, rows: Sequence[Row]) -> list[Row]:
        return sorted(rows, key=lambda row: tuple(-row[name] for name in self.order))

    def identify(self, row: Row) -> tuple[Any, ...]:
        return tuple(row.get(name, "") for name in self.ids)


def printable(text: str) -> str:
    """Return `text` without control characters, which a terminal would obey."""
    return "".join(each if each.isprintable() else "�" for each in text)


def table_lines(
    view: TableView, rows: Sequence[Row], width: int, *, sort_key: str = "", is_descending: bool = False
) -> list[str]:
    """Return the line of the heads and one line per row, each at most `width` cells wide.

    The head of the column `sort_key` shows the order.
    """

    def head(column: Column) -> str:
        return column.head + (SORT_MARKS[is_descending] if column.key == sort_key else "")

    columns = list(view.columns)
    cells = {column.head: [head(column), *(column.cell(row) for row in rows)] for column in columns}
    while not (widths := _widths(columns, cells, width)):
        columns.remove(max(columns, key=lambda column: column.rank))
    return [
        SEPARATOR.join(
            _pad(cells[column.head][line], size, is_right=column.is_number)
            for column, size in zip(columns, widths, strict=True)
        ).rstrip()[:width]
        for line in range(len(rows) + 1)
    ]


def _widths(columns: Sequence[Column], cells: dict[str, list[str]], width: int) -> list[int]:
    """Return the width of each column; empty if they do not fit and one can be left out."""
    wanted = [max(map(cell_len, cells[column.head])) for column in columns]
    excess = sum(wanted) + len(SEPARATOR) * (len(columns) - 1) - width
    while excess > 0:
        longest = max(
            (place for place, column in enumerate(columns) if not column.is_number),
            key=lambda place: wanted[place],
            default=0,
        )
        least = max(MIN_NAME_CHARS, cell_len(cells[columns[longest].head][0]))
        if columns[longest].is_number or wanted[longest] <= least:
            return [] if any(column.rank for column in columns) else wanted
        wanted[longest] -= 1
        excess -= 1
    return wanted


def _pad(text: str, size: int, *, is_right: bool) -> str:
    text = shortened(text, size)
    space = " " * (size - cell_len(text))
    return space + text if is_right else text + space


def shortened(text: str, size: int) -> str:
    """Return `text` within `size` cells: its begin and its end, because names of one kind differ at their end."""
    if cell_len(text) <= size:
        return text
    end = max(0, (size - 1) // 2)
    return f"{text[: max(0, size - 1 - end)]}…{text[len(text) - end :] if end else ''}"
