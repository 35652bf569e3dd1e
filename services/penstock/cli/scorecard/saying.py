"""One line that says what a proof is at."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.markup import escape


@contextmanager
def saying(console: Console) -> Iterator[Callable[[str], None]]:
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda text: live.update(escape(text), refresh=True)
