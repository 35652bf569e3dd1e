"""One line that says what a proof is at."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.markup import escape

EVERY = 15.0  # s; between two lines where the last cannot be written over

Say = Callable[[str], None]


@contextmanager
def saying(console: Console) -> Iterator[Say]:
    """On a terminal each line takes the place of the last; in a file or a pipe there is one now and then."""
    if not console.is_terminal:
        yield now_and_then(lambda text: console.print(escape(text)), time.monotonic)
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda text: live.update(escape(text), refresh=True)


def now_and_then(say: Say, clock: Callable[[], float]) -> Say:
    said_at = -math.inf

    def perhaps(text: str) -> None:
        nonlocal said_at
        if clock() - said_at >= EVERY:
            said_at = clock()
            say(text)

    return perhaps
