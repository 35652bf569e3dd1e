"""Progress of a command that runs for minutes: one line that is overwritten on a terminal."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.markup import escape

MIN_PRINT_INTERVAL_S = 15.0  # s; between two lines where the last one cannot be overwritten

ProgressFn = Callable[[str], None]


@contextmanager
def progress_reporter(console: Console) -> Iterator[ProgressFn]:
    """On a terminal each line replaces the last one; a file or a pipe gets a line every 15 s."""
    if not console.is_terminal:
        yield rate_limited(lambda text: console.print(escape(text)), time.monotonic)
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda text: live.update(escape(text), refresh=True)


def rate_limited(report_progress: ProgressFn, clock: Callable[[], float]) -> ProgressFn:
    printed_at = -math.inf

    def report_if_due(text: str) -> None:
        nonlocal printed_at
        if clock() - printed_at >= MIN_PRINT_INTERVAL_S:
            printed_at = clock()
            report_progress(text)

    return report_if_due
