"""The HTTP connection manager of the door: limits of a client's connection, header hygiene, filters."""

from collections.abc import Sequence
from datetime import timedelta

from envoy_data_plane.envoy.config.common.mutation_rules import v3 as mutation
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.router import v3 as router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation import v3 as early
from envoy_data_plane.envoy.type.matcher import v3 as matcher

from penstock.routing.resources.access_logs import access_log
from penstock.routing.resources.clusters import ads_config_source, pack_any
from penstock.routing.resources.local_replies import local_replies
from penstock.routing.resources.regions.region_door import keeping_regions
from penstock.routing.resources.route_actions import NO_TIMEOUT
from penstock.routing.resources.tracing import plain_request_ids

STREAM_WINDOW_BYTES = 256 * 1024
CONNECTION_WINDOW_BYTES = 4 * 1024 * 1024
MAX_HEADERS_KIB = 32  # per request; a token of 8 KiB and a tenant's metadata fit
MAX_HEADERS = 64  # per request
IDLE_TIMEOUT = timedelta(minutes=15)  # of a connection without requests; clients connect again unnoticed
HEADERS_TIMEOUT = timedelta(seconds=10)  # against clients that never finish their headers
FLUSH_TIMEOUT = timedelta(minutes=1)  # for a client that does not read the end of a response
# Headers that only the mesh writes. A client's are removed before any filter or route can see them.
RESERVED_HEADER_PREFIXES = ("x-penstock-", "x-forwarded-client-cert", "x-envoy-auth-")


def connection_manager(
    *,
    routes: str,
    log_path: str,
    max_streams: int,
    filters: Sequence[hcm.HttpFilter] = (),
    tracing: hcm.HttpConnectionManagerTracing | None = None,
    is_region_door: bool = False,
) -> hcm.HttpConnectionManager:
    """`max_streams` is the number of concurrent calls of one connection. `filters` run before the router.

    The clients of the region door are proxies, whose `x-forwarded-for` and header of regions are trusted.
    """
    removals = _reserved_header_removals()
    return hcm.HttpConnectionManager(
        stat_prefix="region_door" if is_region_door else "front",
        codec_type=hcm.HttpConnectionManagerCodecType.AUTO,
        rds=hcm.Rds(config_source=ads_config_source(), route_config_name=routes),
        http_filters=[*filters, router_filter()],
        early_header_mutation_extensions=[_early_mutation(keeping_regions(removals) if is_region_door else removals)],
        server_header_transformation=hcm.HttpConnectionManagerServerHeaderTransformation.PASS_THROUGH,
        common_http_protocol_options=core.HttpProtocolOptions(idle_timeout=IDLE_TIMEOUT, max_headers_count=MAX_HEADERS),
        http2_protocol_options=_http2(max_streams),
        max_request_headers_kb=MAX_HEADERS_KIB,
        stream_idle_timeout=NO_TIMEOUT,  # 5 min by default, and a queued request may be silent for longer
        stream_flush_timeout=FLUSH_TIMEOUT,
        request_timeout=NO_TIMEOUT,
        request_headers_timeout=HEADERS_TIMEOUT,
        # The proxy is at the network's border, so a client's x-forwarded-for is not trusted.
        use_remote_address=not is_region_door,
        normalize_path=True,
        merge_slashes=True,
        generate_request_id=True,
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        request_id_extension=plain_request_ids(),
        tracing=tracing,
        local_reply_config=local_replies(is_region_door=is_region_door),
        access_log=[access_log(log_path)] if log_path else [],
    )


def router_filter() -> hcm.HttpFilter:
    config = router.Router(suppress_envoy_headers=True)  # clients see no internals of the proxy
    return hcm.HttpFilter(name="envoy.filters.http.router", typed_config=pack_any(config))


def _http2(max_streams: int) -> core.Http2ProtocolOptions:
    return core.Http2ProtocolOptions(
        max_concurrent_streams=max_streams,
        initial_stream_window_size=STREAM_WINDOW_BYTES,
        initial_connection_window_size=CONNECTION_WINDOW_BYTES,
        # Limits of floods; a connection beyond one of them is closed. They are Envoy's defaults, stated so that a
        # release of Envoy cannot change them.
        max_outbound_frames=10_000,
        max_outbound_control_frames=1_000,
        max_consecutive_inbound_frames_with_empty_payload=1,
        max_inbound_priority_frames_per_stream=100,
        max_inbound_window_update_frames_per_data_frame_sent=10,
        # Detects clients that are gone without closing the connection, so that their requests are cancelled.
        connection_keepalive=core.KeepaliveSettings(interval=timedelta(seconds=30), timeout=timedelta(seconds=10)),
    )


def _reserved_header_removals() -> list[mutation.HeaderMutation]:
    return [
        mutation.HeaderMutation(
            remove_on_match=mutation.HeaderMutationRemoveOnMatch(key_matcher=matcher.StringMatcher(prefix=prefix))
        )
        for prefix in RESERVED_HEADER_PREFIXES
    ]


def _early_mutation(mutations: list[mutation.HeaderMutation]) -> core.TypedExtensionConfig:
    return core.TypedExtensionConfig(
        name="envoy.http.early_header_mutation.header_mutation",
        typed_config=pack_any(early.HeaderMutation(mutations=mutations)),
    )
