"""The listener resource: one port for gRPC and HTTP, distinguished by the client's protocol."""

from datetime import timedelta

from envoy_data_plane.envoy.config.accesslog import v3 as accesslog
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.listener import v3 as listener
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.access_loggers.file import v3 as files
from envoy_data_plane.envoy.extensions.access_loggers.stream import v3 as streams
from envoy_data_plane.envoy.extensions.filters.http.router import v3 as router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.type.matcher import v3 as matcher
from envoy_data_plane.google.protobuf import Struct

from penstock.routing.edges.edge_spec import Address
from penstock.routing.resources.clusters import CONNECTION_IDLE_TIMEOUT, ads_config_source, pack_any
from penstock.routing.resources.endpoints import socket_address
from penstock.routing.resources.routes import NO_TIMEOUT
from penstock.routing.resources.types import Resource, ResourceType

STDOUT = "/dev/stdout"
CONNECTION_BUFFER_BYTES = 256 * 1024  # buffer per connection, beyond which a slow reader slows down the edge
STREAM_WINDOW_BYTES = 256 * 1024
CONNECTION_WINDOW_BYTES = 4 * 1024 * 1024
MAX_STREAMS_PER_CONNECTION = 1024  # concurrent calls; beyond them a client opens another connection or waits

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
    "client": "%DOWNSTREAM_REMOTE_ADDRESS%",
}


def front_listener(name: str, address: Address, *, routes: str, access_log: str) -> Resource:
    """`access_log` is a file or /dev/stdout; empty: none."""
    network = listener.Filter(
        name="envoy.filters.network.http_connection_manager",
        typed_config=pack_any(_connection_manager(routes, access_log)),
    )
    message = listener.Listener(
        name=name,
        address=socket_address(address),
        filter_chains=[listener.FilterChain(filters=[network])],
        per_connection_buffer_limit_bytes=CONNECTION_BUFFER_BYTES,
    )
    return Resource(
        type=ResourceType.LISTENER,
        name=name,
        body=bytes(message),
        references=frozenset({(ResourceType.ROUTE, routes)}),
    )


def _connection_manager(routes: str, access_log: str) -> hcm.HttpConnectionManager:
    return hcm.HttpConnectionManager(
        stat_prefix="front",
        codec_type=hcm.HttpConnectionManagerCodecType.AUTO,
        rds=hcm.Rds(config_source=ads_config_source(), route_config_name=routes),
        http_filters=[_router()],
        server_header_transformation=hcm.HttpConnectionManagerServerHeaderTransformation.PASS_THROUGH,
        common_http_protocol_options=core.HttpProtocolOptions(idle_timeout=CONNECTION_IDLE_TIMEOUT),
        http2_protocol_options=_http2(),
        stream_idle_timeout=NO_TIMEOUT,  # 5 min by default, and a queued request may be silent for longer
        request_timeout=NO_TIMEOUT,
        request_headers_timeout=timedelta(seconds=10),  # against clients that never finish their headers
        use_remote_address=True,  # the proxy is at the network's border, so a client's x-forwarded-for is not trusted
        normalize_path=True,
        merge_slashes=True,
        generate_request_id=True,
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        local_reply_config=_local_replies(),
        access_log=[_access_log(access_log)] if access_log else [],
    )


def _router() -> hcm.HttpFilter:
    config = router.Router(suppress_envoy_headers=True)  # clients see no internals of the proxy
    return hcm.HttpFilter(name="envoy.filters.http.router", typed_config=pack_any(config))


def _http2() -> core.Http2ProtocolOptions:
    return core.Http2ProtocolOptions(
        max_concurrent_streams=MAX_STREAMS_PER_CONNECTION,
        initial_stream_window_size=STREAM_WINDOW_BYTES,
        initial_connection_window_size=CONNECTION_WINDOW_BYTES,
        # Detects clients that are gone without closing the connection, so that their requests are cancelled.
        connection_keepalive=core.KeepaliveSettings(interval=timedelta(seconds=30), timeout=timedelta(seconds=10)),
    )


def _local_replies() -> hcm.LocalReplyConfig:
    """Local replies of the proxy: over HTTP in the format of an API error, over gRPC unchanged."""
    not_grpc = route.HeaderMatcher(
        name="content-type",
        string_match=matcher.StringMatcher(prefix="application/grpc"),
        invert_match=True,
        treat_missing_header_as_empty=True,
    )
    error = {"message": "%LOCAL_REPLY_BODY%", "type": "server_error", "code": "%RESPONSE_CODE_DETAILS%", "param": None}
    shape = core.SubstitutionFormatString(json_format=Struct.from_dict({"error": error}))
    only_http = accesslog.AccessLogFilter(header_filter=accesslog.HeaderFilter(header=not_grpc))
    return hcm.LocalReplyConfig(mappers=[hcm.ResponseMapper(filter=only_http, body_format_override=shape)])


def _access_log(path: str) -> accesslog.AccessLog:
    line = core.SubstitutionFormatString(json_format=Struct.from_dict(ACCESS_LOG_FIELDS))
    if path == STDOUT:  # opening it by name may fail, if a container runtime gave it to another user
        return accesslog.AccessLog(
            name="envoy.access_loggers.stdout", typed_config=pack_any(streams.StdoutAccessLog(log_format=line))
        )
    return accesslog.AccessLog(
        name="envoy.access_loggers.file", typed_config=pack_any(files.FileAccessLog(path=path, log_format=line))
    )
