"""The engine process, started by `EngineProcess`: `python -m penstock.worker.engine_host.child FD`.

It ignores SIGINT and SIGTERM, because the worker process handles them. The engine ends when its pipe closes.
"""

import signal
import socket
import sys

from penstock.worker.engine.host.loop import engine_main
from penstock.worker.engine.host.pipe import HostPipe


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    engine_main(HostPipe(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
