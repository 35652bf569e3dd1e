"""Metadata that is no text: the caller is rejected, and the log has neither its value nor a traceback."""

import subprocess
import sys

PROGRAM = """
import asyncio
import socket
from h2.config import H2Configuration
from h2.connection import H2Connection
from penstock.chassis.observability.logs import configure_logs
from penstock.chassis.server.server import serving

KEY = b"Bearer pk_dev_\\xa0\\xad"

async def main():
    configure_logs("info")
    async with serving("127.0.0.1:0", [], drain_grace=0.1) as server:
        host, _, port = server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        connection = H2Connection(H2Configuration(validate_outbound_headers=False, header_encoding=None))
        connection.initiate_connection()
        headers = [
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/grpc.health.v1.Health/Check"),
            (b":authority", b"a"), (b"content-type", b"application/grpc"), (b"authorization", KEY),
        ]
        connection.send_headers(1, headers)
        connection.send_data(1, bytes(5), end_stream=True)
        writer.write(connection.data_to_send())
        async with asyncio.timeout(10):
            ended = False
            while not ended:
                events = connection.receive_data(await reader.read(65_536))
                ended = any(type(each).__name__ in ("StreamEnded", "StreamReset") for each in events)
        writer.close()
    print("answered")

asyncio.run(main())
"""


def test_metadata_that_is_no_text_is_not_logged():
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout == "answered\n", found.stderr
    assert "pk_dev_" not in found.stderr
    assert "Traceback" not in found.stderr
