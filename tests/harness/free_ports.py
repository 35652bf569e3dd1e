"""Ports of loopback for servers that a test starts by number: their address is known before they listen."""

import itertools
import os
import random
import socket

# Below the ports that Linux gives to outgoing connections and to servers without a port (ip_local_port_range, from
# 32768): any other process can be given such a port before the server of the test listens on it. Between the ports of a
# mesh by default (7000 to 8199) and those of the meshes of tests (from 10800).
FIRST_PORT, PORTS_OF_PROCESS, PROCESSES = 8_400, 300, 8


def _own_ports():
    """The ports of this process of pytest, again and again; two runs at once rarely begin at the same one."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
    first = FIRST_PORT + process * PORTS_OF_PROCESS
    begin = random.randrange(PORTS_OF_PROCESS)
    return itertools.cycle(first + (begin + number) % PORTS_OF_PROCESS for number in range(PORTS_OF_PROCESS))


_ports = _own_ports()


def free_port() -> int:
    """Return a port on which nothing listens. No other test gets it soon."""
    for port in itertools.islice(_ports, PORTS_OF_PROCESS):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    message = f"no port of {PORTS_OF_PROCESS} from {FIRST_PORT} is free"
    raise AssertionError(message)
