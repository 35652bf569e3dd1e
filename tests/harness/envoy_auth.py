"""A fake auth process for Envoy's authorization filter, with the responses that the filter's contract describes."""

import asyncio
import base64
import json
from contextlib import asynccontextmanager

import grpc
from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
)
from envoy_data_plane.envoy.service.auth.v3 import CheckRequest, CheckResponse, DeniedHttpResponse, OkHttpResponse
from envoy_data_plane.envoy.type.v3 import HttpStatus
from envoy_data_plane.google.rpc import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from envoy_proxy import SERVER_OPTIONS
from penstock.chassis.errors import QuotaExceeded, Unauthenticated

GOOD, SPENT = "Bearer pk_good", "Bearer pk_spent"  # any other is unknown
IDENTITY = "signed-identity"
UNKNOWN = Unauthenticated("this API key is unknown", reason="KEY_UNKNOWN")
HTTP_BODY = {"error": {"message": UNKNOWN.message, "type": "authentication_error", "code": "invalid_api_key"}}


class EnvoyAuth:
    def __init__(self):
        self.checks = []  # the HTTP attributes of all checks
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    @asynccontextmanager
    async def running(self):
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        check = grpc.unary_unary_rpc_method_handler(
            self._check,
            request_deserializer=CheckRequest.FromString,
            response_serializer=CheckResponse.SerializeToString,
        )
        service = grpc.method_handlers_generic_handler("envoy.service.auth.v3.Authorization", {"Check": check})
        self.server.add_generic_rpc_handlers((service,))
        ready = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(ready, self.server)
        await ready.set("", health_pb2.HealthCheckResponse.SERVING)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()
        try:
            yield self
        finally:
            self.may_answer.set()
            await self.server.stop(None)

    async def _check(self, request, context):
        http = request.attributes.request.http
        self.checks.append(http)
        await self.may_answer.wait()
        bearer = http.headers.get("authorization", "")
        if bearer == GOOD:
            return CheckResponse(
                status=Status(), ok_response=OkHttpResponse(headers=[_header("x-penstock-identity", IDENTITY)])
            )
        is_grpc = http.headers.get("content-type", "").startswith("application/grpc")
        error = QuotaExceeded("no tokens are left", retry_after=2.0) if bearer == SPENT else UNKNOWN
        return _denied(error, is_grpc=is_grpc)


def _denied(error, *, is_grpc):
    status = 429 if isinstance(error, QuotaExceeded) else 401
    if is_grpc:
        details = base64.b64encode(error.status().SerializeToString()).decode().rstrip("=")
        headers = {"grpc-status": str(error.code.value[0]), "grpc-status-details-bin": details}
        body = error.message
    else:
        headers = {"content-type": "application/json", "x-penstock-reason": error.reason}
        body = json.dumps(HTTP_BODY)
    denial = DeniedHttpResponse(
        status=HttpStatus(code=status), headers=[_header(*each) for each in headers.items()], body=body
    )
    return CheckResponse(status=Status(code=error.code.value[0]), denied_response=denial)


def _header(name, value):
    overwrite = HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
    return HeaderValueOption(header=HeaderValue(key=name, value=value), append_action=overwrite)
