"""The live screen of `penstock top`: the open table, its order and selected row, and the effect of each key. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.cli.top.frame import Row, TopFrame
from penstock.cli.top.layout import SEPARATOR, TableView, printable, shortened, table_lines
from penstock.cli.top.once import summary
from penstock.cli.top.tables import TABLES

FOOTER = "1-9 table  ↑↓ row  Enter open  i values  Esc back  s sort  r reverse  q quit"
PAUSED = "paused; space: go on"
VIEWS = {view.name: view for view in TABLES}
HEADER_LINES, FOOTER_LINES = 4, 1  # summary, tabs, place and heads of the columns; keys

Figures = Mapping[str, Mapping[str, float]]  # of each process by its name


class Line(NamedTuple):
    text: str
    style: str = ""  # bold, reverse or dim


@dataclass(slots=True, kw_only=True)
class OpenTable:
    """An open table with the rows that equal `where`."""

    view: TableView
    where: Row = field(default_factory=dict)
    sort_key: str = ""  # empty: the table's own order
    is_descending: bool = True
    index: int = 0  # of the selected row
    selected: tuple[Any, ...] = ()  # its identity, which a new order of the rows does not change
    offset: int = 0  # rows above the first visible one

    def rows(self, frame: TopFrame) -> list[Row]:
        """Return the rows in order, and move the selection to where its row is."""
        found = [
            row
            for row in frame[self.view.rows]  # type: ignore[literal-required]  # a table's key is one of the frame
            if all(row.get(name) == value for name, value in self.where.items())
        ]
        rows = self._sorted(found) if self.sort_key else self.view.ordered(found)
        places = {self.view.identify(row): place for place, row in enumerate(rows)}
        self.select(rows, places.get(self.selected, self.index))
        return rows

    def select(self, rows: Sequence[Row], index: int) -> None:
        self.index = max(0, min(index, len(rows) - 1))
        self.selected = self.view.identify(rows[self.index]) if rows else ()

    def sort(self, step: int) -> None:
        """Order by the column `step` places after the present one; before the first one is the table's own order."""
        keys = ["", *(column.key for column in self.view.columns)]
        self.sort_key = keys[(keys.index(self.sort_key) + step) % len(keys)]
        self.is_descending = any(column.is_number for column in self.view.columns if column.key == self.sort_key)

    def _sorted(self, rows: Sequence[Row]) -> list[Row]:
        known = [row for row in rows if row.get(self.sort_key) is not None]
        unknown = [row for row in rows if row.get(self.sort_key) is None]
        return sorted(known, key=lambda row: row[self.sort_key], reverse=self.is_descending) + unknown


@dataclass(slots=True, kw_only=True)
class OpenRow:
    """One row with all of its values and, if it is a process, that process's figures."""

    view: TableView
    selected: tuple[Any, ...]
    offset: int = 0

    def lines(self, frame: TopFrame, figures: Figures) -> list[str]:
        rows = frame[self.view.rows]  # type: ignore[literal-required]  # a table's key is one of the frame
        row = next((each for each in rows if self.view.identify(each) == self.selected), None)
        if row is None:
            return ["it is no longer there"]
        pairs = [(name, value) for name, value in row.items() if not isinstance(value, list)]
        pairs += [
            (f"{stage['tier']} {stage['name']}", f"{1e3 * stage['length_s']:,.1f} ms")
            for stage in row.get("stages", ())
        ]
        process = str(row.get(self.view.columns[0].key, ""))
        pairs += sorted((f"figure {name}", value) for name, value in figures.get(process, {}).items())
        width = max(len(name) for name, _ in pairs)
        return [printable(f"{name:<{width}}{SEPARATOR}{_value_text(value)}") for name, value in pairs]


@dataclass(slots=True)
class Screen:
    """The state of the screen. `on_key` changes it, `lines` draws it."""

    frame: TopFrame
    figures: Figures
    is_paused: bool = False
    tabs: dict[str, OpenTable] = field(
        default_factory=lambda: {name: OpenTable(view=view) for name, view in VIEWS.items()}
    )
    tab: str = TABLES[0].name
    opened: list[OpenTable | OpenRow] = field(default_factory=list)  # from the table of the tab, each in the one before
    page_rows: int = 1  # visible rows of the last drawing

    @property
    def top(self) -> OpenTable | OpenRow:
        return self.opened[-1] if self.opened else self.tabs[self.tab]

    def update(self, frame: TopFrame, figures: Figures) -> None:
        """Show a new frame, unless the screen is paused."""
        if not self.is_paused:
            self.frame, self.figures = frame, figures

    def on_key(self, key: str) -> bool:
        """Apply one key, as `keys_of` names it; return whether the program goes on."""
        names = list(self.tabs)
        match key:
            case "q":
                return False
            case " ":
                self.is_paused = not self.is_paused
            case "tab" | "right":
                self._open_tab(names[(names.index(self.tab) + 1) % len(names)])
            case "backtab" | "left":
                self._open_tab(names[(names.index(self.tab) - 1) % len(names)])
            case "escape" | "backspace":
                self.opened = self.opened[:-1]
            case "enter" | "i":
                self._open_selected(with_values=key == "i")
            case "s" | "S" | "r":
                self._sort(key)
            case _ if key.isdecimal() and 0 < int(key) <= len(names):
                self._open_tab(names[int(key) - 1])
            case _:
                self._move(key)
        return True

    def lines(self, width: int, height: int) -> list[Line]:
        """Return exactly `height` lines of at most `width` cells."""
        self.page_rows = max(1, height - HEADER_LINES - FOOTER_LINES)
        body = self._table_lines(self.top, width) if isinstance(self.top, OpenTable) else self._row_lines(self.top)
        lines = [Line(summary(self.frame, width), "bold"), Line(self._tabs_line(width)), *body]
        lines = lines[: height - FOOTER_LINES] + [Line("")] * (height - FOOTER_LINES - len(lines))
        footer = PAUSED if self.is_paused else FOOTER
        return [Line(shortened(line.text, width), line.style) for line in [*lines, Line(footer[:width], "dim")]]

    def _open_tab(self, name: str) -> None:
        self.tab, self.opened = name, []

    def _open_selected(self, *, with_values: bool) -> None:
        top = self.top
        if isinstance(top, OpenRow):
            return
        rows = top.rows(self.frame)
        if not rows:
            return
        row = rows[top.index]
        if top.view.child and not with_values:
            self.opened.append(OpenTable(view=VIEWS[top.view.child], where={name: row[name] for name in top.view.link}))
        else:
            self.opened.append(OpenRow(view=top.view, selected=top.selected))

    def _sort(self, key: str) -> None:
        if not isinstance(self.top, OpenTable):
            return
        if key == "r":
            self.top.is_descending = not self.top.is_descending
        else:
            self.top.sort(1 if key == "s" else -1)

    def _move(self, key: str) -> None:
        page = self.page_rows
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page}
        far = {"home": -1_000_000, "g": -1_000_000, "end": 1_000_000, "G": 1_000_000}
        step = steps.get(key) or far.get(key, 0)
        top = self.top
        if isinstance(top, OpenRow):
            last = max(0, len(top.lines(self.frame, self.figures)) - page)
            top.offset = max(0, min(last, top.offset + step))
        else:
            rows = top.rows(self.frame)
            top.select(rows, top.index + step)

    def _tabs_line(self, width: int) -> str:
        names = [f"[{name}]" if name == self.tab else f" {name} " for name in self.tabs]
        return shortened("".join(names), width)

    def _table_lines(self, table: OpenTable, width: int) -> list[Line]:
        rows = table.rows(self.frame)
        last = max(0, len(rows) - self.page_rows)
        table.offset = max(0, min(last, table.index, max(table.offset, table.index - self.page_rows + 1)))
        shown = rows[table.offset : table.offset + self.page_rows]
        head, *cells = table_lines(table.view, shown, width, sort_key=table.sort_key, is_descending=table.is_descending)
        place = self._place(table, len(rows))
        lines = [Line(cell, "reverse" if table.offset + at == table.index else "") for at, cell in enumerate(cells)]
        return [Line(place, "dim"), Line(head, "bold"), *lines]

    def _row_lines(self, row: OpenRow) -> list[Line]:
        lines = row.lines(self.frame, self.figures)
        row.offset = min(row.offset, max(0, len(lines) - self.page_rows))
        name = " ".join(filter(None, map(str, row.selected)))
        shown = lines[row.offset : row.offset + self.page_rows]
        return [Line(printable(f"{row.view.name}: {name}"), "dim"), Line(""), *map(Line, shown)]

    def _place(self, table: OpenTable, count: int) -> str:
        where = " ".join(str(value) for value in table.where.values())
        of = f"{table.view.name} of {where}: " if where else ""
        return printable(f"{of}{table.index + 1 if count else 0} of {count:,}  {table.view.note}")


def _value_text(value: Any) -> str:
    return f"{value:,.10g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
