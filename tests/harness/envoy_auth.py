"""A fake auth process for Envoy's authorization filter, with the responses that the filter's contract describes."""

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from typing import NamedTuple

from penstock.chassis.errors import QuotaExceeded, Unauthenticated

GOOD, SPENT = "Bearer pk_good", "Bearer pk_spent"  # any other is unknown
IDENTITY = "signed-identity"
UNKNOWN = Unauthenticated("this API key is unknown", reason="KEY_UNKNOWN")
HTTP_BODY = {"error": {"message": UNKNOWN.message, "type": "authentication_error", "code": "invalid_api_key"}}


class Check(NamedTuple):
    path: str
    headers: dict[str, str]


class EnvoyAuth:
    def __init__(self):
        self.checks = []
        self.regions = ""  # that all tenants allow; empty: auth does not say
        self.writers = set()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    @asynccontextmanager
    async def running(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self.may_answer.set()
            self.stop()

    def stop(self):
        self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()

    async def _serve(self, reader, writer):
        self.writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                writer.write(await self._response(head))
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _response(self, head):
        request, *lines = head.strip().split("\r\n")
        path, headers = request.split()[1], dict(line.split(": ", 1) for line in lines)
        if path == "/health":
            return response(200)
        self.checks.append(Check(path, headers))
        await self.may_answer.wait()
        bearer = headers.get("authorization", "")
        if bearer == GOOD:
            allowed = {"x-penstock-regions": self.regions} if self.regions else {}
            return response(200, {"x-penstock-identity": IDENTITY, **allowed})
        error = QuotaExceeded("no tokens are left", retry_after=2.0) if bearer == SPENT else UNKNOWN
        return denied(error, is_grpc=headers.get("content-type", "").startswith("application/grpc"))


def denied(error, *, is_grpc):
    status = 429 if isinstance(error, QuotaExceeded) else 401
    if is_grpc:
        details = base64.b64encode(error.status().SerializeToString()).decode().rstrip("=")
        return response(status, {"grpc-status": error.code.value[0], "grpc-status-details-bin": details}, error.message)
    headers = {"content-type": "application/json", "x-penstock-reason": error.reason}
    return response(status, headers, json.dumps(HTTP_BODY))


def response(status, headers=(), body=""):
    lines = [f"HTTP/1.1 {status} OK", *(f"{name}: {value}" for name, value in dict(headers).items())]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", body]).encode()
