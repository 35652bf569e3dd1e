"""One line that says what a proof is at."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.markup import escape

MIN_PRINT_INTERVAL_S = 15.0  # s; between two lines where the last cannot be written over

ProgressFn = Callable[[str], None]


@contextmanager
def progress_reporter(console: Console) -> Iterator[ProgressFn]:
    """On a terminal each line takes the place of the last; in a file or a pipe there is one now and then."""
    if not console.is_terminal:
        yield rate_limited(lambda text: console.print(escape(text)), time.monotonic)
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda text: live.update(escape(text), refresh=True)


def rate_limited(report_progress: ProgressFn, clock: Callable[[], float]) -> ProgressFn:
    said_at = -math.inf

    def perhaps(text: str) -> None:
        nonlocal said_at
        if clock() - said_at >= MIN_PRINT_INTERVAL_S:
            said_at = clock()
            report_progress(text)

    return perhaps
