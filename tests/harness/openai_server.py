"""A fake OpenAI server with the metrics of vLLM, for endpoint pickers."""

import asyncio
import json
from contextlib import asynccontextmanager

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="small"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="small"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0",model_name="small"}} {kv_usage}
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="10000"}} 1.0
"""


class OpenAIServer:
    """Answers a body with "stream" by events, of which the second waits for `may_continue`, any other one at once."""

    def __init__(self, name):
        self.name = name
        self.running, self.waiting, self.kv_usage = 0, 0, 0.0
        self.has_metrics = True
        self.may_continue = asyncio.Event()
        self.has_request = asyncio.Semaphore(0)
        self.requests = []  # headers by name and body of each
        self._writers = set()

    @asynccontextmanager
    async def serving(self, port=0):
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._server = server
        try:
            yield self
        finally:
            self.stop()

    def stop(self):
        self._server.close()
        self.may_continue.set()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader, writer):
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._answer(head.decode().split("\r\n"), reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client, or this server, ends the connection
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, lines, reader, writer):
        path = lines[0].split(" ")[1]
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        if path == "/metrics":
            self._send(writer, self._metrics() if self.has_metrics else "", 200 if self.has_metrics else 404)
            return
        body = await _body(headers, reader)
        self.requests.append((headers, body))
        self.has_request.release()
        if b'"stream"' in body:
            await self._stream(writer)
        else:
            usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
            self._send(writer, json.dumps({"server": self.name, "usage": usage}))

    def _metrics(self):
        return METRICS.format(running=self.running, waiting=self.waiting, kv_usage=self.kv_usage)

    def _send(self, writer, text, status=200):
        head = f"HTTP/1.1 {status} OK\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
        writer.write(f"{head}{text}".encode())

    async def _stream(self, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(_chunk(f"data: {self.name} first\n\n"))
        await writer.drain()
        await self.may_continue.wait()
        usage = json.dumps({"usage": {"prompt_tokens": 7, "completion_tokens": 3}})
        writer.write(_chunk(f"data: {self.name} second\n\ndata: {usage}\n\n") + b"0\r\n\r\n")


async def _body(headers, reader):
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
        pass
    return body


def _chunk(text):
    return b"%x\r\n%s\r\n" % (len(text), text.encode())
