"""A fake engine that starts processes of its own: `python -m forking_engine FD`."""

import os
import socket
import sys
import time

from penstock.worker.engine.host.pipe import HostPipe

if __name__ == "__main__":
    pipe = HostPipe(socket.socket(fileno=int(sys.argv[1])))
    offspring = os.fork()  # has the pipe too, as no exec closes it
    if not offspring:
        time.sleep(600)
    pipe.send(offspring)
    pipe.wait()  # for the options
    pipe.receive()
    pipe.wait()  # for the end
