"""The keys of a terminal, one name each."""

import asyncio
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

MAX_READ_BYTES = 1_024
MAX_KEYS = 1_024  # that wait to be applied; the oldest is dropped first
END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
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
    """Yield a queue of the keys that the user presses during the block.

    SIGTERM, SIGHUP and the end of the terminal are the key `q`, so that the terminal is restored.
    """
    keys: asyncio.Queue[str] = asyncio.Queue(maxsize=MAX_KEYS)

    def press(name: str) -> None:
        if keys.full():
            keys.get_nowait()
        keys.put_nowait(name)

    loop = asyncio.get_running_loop()
    for each in END_SIGNALS:
        loop.add_signal_handler(each, press, "q")
    try:
        with _reading_terminal(press) if sys.stdin.isatty() else nullcontext():
            yield keys
    finally:
        for each in END_SIGNALS:
            loop.remove_signal_handler(each)


@contextmanager
def _reading_terminal(press: Callable[[str], None]) -> Iterator[None]:
    terminal, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    former = termios.tcgetattr(terminal)

    def read() -> None:
        try:
            sent = os.read(terminal, MAX_READ_BYTES)
        except OSError:
            sent = b""
        if not sent:
            loop.remove_reader(terminal)
            press("q")
        for name in keys_of(sent.decode(errors="ignore")):
            press(name)

    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        with suppress(termios.error):  # it may have ended
            termios.tcsetattr(terminal, termios.TCSADRAIN, former)
