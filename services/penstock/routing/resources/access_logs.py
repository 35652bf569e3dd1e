"""The access log of the proxies: one JSON line per call."""

from envoy_data_plane.envoy.config.accesslog import v3 as accesslog
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.access_loggers.file import v3 as files
from envoy_data_plane.envoy.extensions.access_loggers.stream import v3 as streams
from envoy_data_plane.google.protobuf import Struct

from penstock.routing.resources.clusters import pack_any

STDOUT = "/dev/stdout"

# Metadata only: no prompt, token or credential is logged.
ACCESS_LOG_FIELDS = {
    "event": "proxied",
    "start_time": "%START_TIME%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "traceparent": "%REQ(TRACEPARENT)%",
    "method": "%REQ(:METHOD)%",
    "path": "%PATH(NQ)%",
    "protocol": "%PROTOCOL%",
    "code": "%RESPONSE_CODE%",
    "code_details": "%RESPONSE_CODE_DETAILS%",
    "grpc_status": "%GRPC_STATUS%",
    "flags": "%RESPONSE_FLAGS%",  # the field to alert on: a cut stream still logs code 200
    "duration_ms": "%DURATION%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "bytes_in": "%BYTES_RECEIVED%",
    "bytes_out": "%BYTES_SENT%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "edge": "%UPSTREAM_HOST%",
    "tls": "%DOWNSTREAM_TLS_VERSION%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS%",
}


def access_log(path: str) -> accesslog.AccessLog:
    line = core.SubstitutionFormatString(json_format=Struct.from_dict(ACCESS_LOG_FIELDS))
    if path == STDOUT:  # opening it by name may fail, if a container runtime gave it to another user
        return accesslog.AccessLog(
            name="envoy.access_loggers.stdout", typed_config=pack_any(streams.StdoutAccessLog(log_format=line))
        )
    return accesslog.AccessLog(
        name="envoy.access_loggers.file", typed_config=pack_any(files.FileAccessLog(path=path, log_format=line))
    )
