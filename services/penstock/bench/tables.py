"""The one style of all tables that commands print."""

from collections.abc import Sequence

from rich.table import Table


def new_table(*texts: str, numbers: Sequence[str] = ()) -> Table:
    """Return a borderless table with left-aligned columns `texts`, then right-aligned columns `numbers`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in texts:
        table.add_column(column)
    for column in numbers:
        table.add_column(column, justify="right")
    return table
