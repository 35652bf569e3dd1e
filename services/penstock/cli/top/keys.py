"""The keys of a terminal, one name each."""

import asyncio
import os
import re
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

MAX_READ_BYTES = 1_024
SEQUENCES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b[Z": "backtab",
    "\x1b": "escape",
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}
KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)


def keys_of(text: str) -> list[str]:
    """Return the names of the keys whose characters a terminal has sent; a printable character is its own name.

    Other keys are left out.
    """
    names = (SEQUENCES.get(each, each) for each in KEY.findall(text))
    return [name for name in names if name.isprintable()]


@contextmanager
def reading_keys() -> Iterator[asyncio.Queue[str]]:
    """Yield a queue of the keys that the user presses during the block; without a terminal it stays empty."""
    keys: asyncio.Queue[str] = asyncio.Queue(maxsize=MAX_READ_BYTES)
    if not sys.stdin.isatty():
        yield keys
        return
    terminal, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    former = termios.tcgetattr(terminal)

    def read() -> None:
        sent = os.read(terminal, MAX_READ_BYTES)
        if not sent:  # the terminal is closed
            loop.remove_reader(terminal)
            keys.put_nowait("q")
            return
        for name in keys_of(sent.decode(errors="ignore")):
            if not keys.full():
                keys.put_nowait(name)

    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield keys
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, former)
