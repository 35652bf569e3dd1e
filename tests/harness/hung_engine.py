"""A fake engine that closes its pipe and does not end: `python -m hung_engine FD`."""

import os
import socket
import sys
import time

from penstock.worker.engine.host.pipe import HostPipe

if __name__ == "__main__":
    end = socket.socket(fileno=int(sys.argv[1]))
    pipe = HostPipe(end)
    pipe.send(os.getpid())
    pipe.wait()  # for the options
    end.close()
    time.sleep(600)
