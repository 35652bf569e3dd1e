"""Where the engine's process begins: `python -m penstock.worker.engine_child FD`, started by `EngineLink`.

Signals meant for the worker are the front's to answer: the engine ends when its pipe closes, and by nothing else.
"""

import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from penstock.worker.engine.process import engine_main


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with Connection(int(sys.argv[1])) as conn, suppress(EOFError):  # the front is gone before it said a word
        engine_main(conn, conn.recv())


if __name__ == "__main__":
    main()
