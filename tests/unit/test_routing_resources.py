"""The resources of the proxies, parsed as a proxy parses them."""

import pytest
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import Secret

from penstock.chassis.security.certificate_pair import CertificatePair
from penstock.mesh.identity_header import HEADER
from penstock.routing.edges.edge_spec import Address, parse_specs
from penstock.routing.resources.build import ProxyConfig, build_snapshot
from penstock.routing.resources.tracing import Collector
from penstock.routing.resources.types import ResourceType

SECRET, CLUSTER, ENDPOINT, LISTENER, ROUTE = ResourceType
MESSAGES = {
    SECRET: Secret,
    CLUSTER: Cluster,
    ENDPOINT: ClusterLoadAssignment,
    LISTENER: Listener,
    ROUTE: RouteConfiguration,
}
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


AUTHS = (Address("auth", 7007),)
PAIR = CertificatePair(b"the chain", b"the key")


def snapshot(edges="127.0.0.1:7001/127.0.0.1:7080", certificate=None, **front):
    proxy = ProxyConfig(listen=Address("127.0.0.1", 8080), **front)
    return build_snapshot(proxy, [spec.template for spec in parse_specs(edges)], certificate)


def read_back(kind, name, **fields):
    return MESSAGES[kind].parse(snapshot(**fields).by_type[kind][name].body).to_dict()


def connection_manager(**fields):
    return read_back(LISTENER, "front", **fields)["filterChains"][0]["filters"][0]["typedConfig"]


def test_grpc_is_routed_to_one_cluster_and_http_to_the_other():
    (host,) = read_back(ROUTE, "edges")["virtualHosts"]
    assert host["domains"] == ["*"]
    assert [(route["match"], target(route)) for route in host["routes"]] == [
        ({"prefix": "/penstock.v1.Inference/", "grpc": {}}, "edge_grpc"),
        ({"prefix": "/penstock.v1.Batches/", "grpc": {}}, "edge_grpc"),
        ({"prefix": "/", "grpc": {}}, 404),
        ({"prefix": "/v1/"}, "edge_http"),
        ({"prefix": "/tokenize"}, "edge_http"),
        ({"prefix": "/detokenize"}, "edge_http"),
        ({"path": "/health"}, "edge_http"),
        ({"prefix": "/"}, 404),
    ]


def target(route):
    """The cluster of a route, or the status with which the proxy answers."""
    return route["route"]["cluster"] if "route" in route else route["directResponse"]["status"]


def test_with_auth_a_call_without_a_credential_is_refused_before_the_route_that_would_forward_it():
    (host,) = read_back(ROUTE, "edges", auths=AUTHS)["virtualHosts"]
    assert [(route["name"], target(route), "typedPerFilterConfig" in route) for route in host["routes"]] == [
        *[("grpc_key_missing", 401, True), ("grpc", "edge_grpc", False)] * 2,
        ("grpc_unknown", 404, True),
        *[("http_key_missing", 401, True), ("http", "edge_http", False)] * 3,
        ("health", "edge_http", True),
        ("http_unknown", 404, True),
    ]
    for missing in (each for each in host["routes"] if each["name"].endswith("key_missing")):
        assert [(each["name"], each["invertMatch"]) for each in missing["match"]["headers"]] == [
            ("authorization", True),
            ("x-api-key", True),
        ]


def test_with_auth_each_call_is_checked_by_its_headers_and_passes_if_auth_does_not_answer():
    check, router = connection_manager(auths=AUTHS)["httpFilters"]
    assert router["name"] == "envoy.filters.http.router"
    config = check["typedConfig"]
    service = config["httpService"]
    assert service["serverUri"] == {"uri": "http://auth/check", "cluster": "auth", "timeout": "0.250s"}
    assert service["pathOverride"] == "/check"
    assert service["authorizationResponse"]["allowedUpstreamHeaders"] == {
        "patterns": [{"exact": HEADER}, {"exact": "x-penstock-regions"}]
    }
    assert config["failureModeAllow"] is True
    assert "withRequestBody" not in config
    assert [pattern["exact"] for pattern in config["allowedHeaders"]["patterns"]] == [
        "authorization",
        "x-api-key",
        "content-type",
        "x-forwarded-for",
    ]
    assert [each["name"] for each in connection_manager()["httpFilters"]] == ["envoy.filters.http.router"]


def test_auth_is_dialled_by_name_with_a_check_at_a_time_on_each_connection():
    cluster = read_back(CLUSTER, "auth", auths=AUTHS)
    assert cluster["type"] == "STRICT_DNS"
    (group,) = cluster["loadAssignment"]["endpoints"]
    assert [host(endpoint)[:2] for endpoint in group["lbEndpoints"]] == [("auth", 7007)]
    assert "httpProtocolOptions" in cluster["typedExtensionProtocolOptions"][HTTP_OPTIONS]["explicitHttpConfig"]
    (threshold,) = cluster["circuitBreakers"]["thresholds"]
    assert (threshold["maxConnections"], threshold["maxPendingRequests"]) == (256, 1024)


def test_headers_that_only_the_mesh_writes_are_removed_before_any_filter():
    (extension,) = connection_manager()["earlyHeaderMutationExtensions"]
    removed = [each["removeOnMatch"]["keyMatcher"] for each in extension["typedConfig"]["mutations"]]
    assert removed == [{"prefix": "x-penstock-"}, {"prefix": "x-forwarded-client-cert"}, {"prefix": "x-envoy-auth-"}]


def test_the_door_speaks_plaintext_without_a_certificate_and_only_tls_with_one():
    (plaintext,) = read_back(LISTENER, "front")["filterChains"]
    assert "transportSocket" not in plaintext
    (chain,) = read_back(LISTENER, "front", certificate=PAIR)["filterChains"]
    common = chain["transportSocket"]["typedConfig"]["commonTlsContext"]
    assert common["alpnProtocols"] == ["h2", "http/1.1"]
    assert common["tlsParams"]["tlsMinimumProtocolVersion"] == "TLSv1_2"
    (secret,) = common["tlsCertificateSdsSecretConfigs"]
    assert secret == {"name": "door", "sdsConfig": {"ads": {}, "resourceApiVersion": "V3"}}


def test_a_new_certificate_changes_the_secret_and_nothing_else():
    before, after = snapshot(certificate=PAIR), snapshot(certificate=CertificatePair(b"new chain", b"new key"))
    assert [kind for kind in ResourceType if before.versions[kind] != after.versions[kind]] == [SECRET]


def test_no_private_key_is_printed():
    assert "new key" not in repr(CertificatePair(b"chain", b"new key"))
    (secret,) = snapshot(certificate=PAIR).by_type[SECRET].values()
    assert "the key" not in repr(secret)


def test_hsts_is_sent_over_tls_only_if_it_is_asked_for():
    def added(**front):
        return read_back(ROUTE, "edges", **front)["virtualHosts"][0].get("responseHeadersToAdd", [])

    assert added(certificate=PAIR) == added(hsts_max_age_s=60) == []
    (header,) = added(certificate=PAIR, hsts_max_age_s=60)
    assert header["header"] == {"key": "strict-transport-security", "value": "max-age=60"}


def test_a_redirecting_listener_exists_only_beside_tls():
    redirect = {"redirect_listen": Address("127.0.0.1", 8081)}
    assert snapshot(**redirect).by_type[LISTENER].keys() == {"front"}
    assert snapshot(certificate=PAIR, **redirect).by_type[LISTENER].keys() == {"front", "redirect"}


def test_a_client_connection_has_limits():
    manager = connection_manager(max_streams_per_connection=7)
    assert manager["maxRequestHeadersKb"] == 32
    assert manager["requestHeadersTimeout"] == "10s"
    assert manager["streamFlushTimeout"] == "60s"
    http2 = manager["http2ProtocolOptions"]
    assert http2["maxConcurrentStreams"] == 7
    assert http2["maxOutboundControlFrames"] == 1_000
    assert http2["maxConsecutiveInboundFramesWithEmptyPayload"] == 1


def test_connections_to_the_edges_carry_few_calls_and_survive_resets_of_many():
    options = read_back(CLUSTER, "edge_grpc")["typedExtensionProtocolOptions"][HTTP_OPTIONS]
    http2 = options["explicitHttpConfig"]["http2ProtocolOptions"]
    assert http2["maxConcurrentStreams"] == 100
    assert http2["maxOutboundControlFrames"] == http2["maxOutboundFrames"] == 1_000_000


def test_no_timer_of_the_proxy_runs_on_a_stream():
    routes = read_back(ROUTE, "edges")["virtualHosts"][0]["routes"]
    for route in (each for each in routes if "route" in each):
        assert (route["route"]["timeout"], route["route"]["idleTimeout"]) == ("0s", "0s")
        assert not route["route"].keys() & {"maxStreamDuration", "maxGrpcTimeout", "grpcTimeoutOffset"}
    manager = connection_manager()
    assert (manager["streamIdleTimeout"], manager["requestTimeout"]) == ("0s", "0s")
    assert manager["commonHttpProtocolOptions"] == {"idleTimeout": "900s", "maxHeadersCount": 64}


def test_retries_end_where_an_edge_has_taken_the_call():
    retries = read_back(ROUTE, "edges")["virtualHosts"][0]["retryPolicy"]
    assert retries["retryOn"] == "connect-failure,refused-stream,reset-before-request"
    assert [predicate["name"] for predicate in retries["retryHostPredicate"]] == [
        "envoy.retry_host_predicates.previous_hosts"
    ]
    assert retries["retryPriority"]["name"] == "envoy.retry_priorities.previous_priorities"


@pytest.mark.parametrize("cluster", ["edge_grpc", "edge_http"])
def test_a_cluster_follows_its_edges_at_once(cluster):
    resource = read_back(CLUSTER, cluster)
    assert resource["type"] == "EDS"
    assert resource["edsClusterConfig"] == {"edsConfig": {"ads": {}, "resourceApiVersion": "V3"}}
    assert resource["ignoreHealthOnHostRemoval"] is True
    assert resource["commonLbConfig"] == {
        "healthyPanicThreshold": {},  # 0 %
        "updateMergeWindow": "0s",
        "ignoreNewHostsUntilFirstHc": True,
    }


@pytest.mark.parametrize(
    ("cluster", "kind", "protocol_options"),
    [("edge_grpc", "grpcHealthCheck", {}), ("edge_http", "httpHealthCheck", {"path": "/health"})],
)
def test_an_idle_cluster_is_checked_every_second(cluster, kind, protocol_options):
    (check,) = read_back(CLUSTER, cluster)["healthChecks"]
    assert check[kind] == protocol_options
    assert (check["interval"], check["noTrafficInterval"], check["noTrafficHealthyInterval"]) == ("1s", "1s", "1s")


@pytest.mark.parametrize("cluster", ["edge_grpc", "edge_http"])
def test_no_response_of_an_edge_ejects_it(cluster):
    detection = read_back(CLUSTER, cluster)["outlierDetection"]
    assert detection["splitExternalLocalOriginErrors"] is True
    assert detection["enforcingConsecutiveLocalOriginFailure"] == 100
    enforcing = {name for name in detection if name.startswith("enforcing")} - {
        "enforcingConsecutiveLocalOriginFailure"
    }
    assert enforcing == {
        "enforcingConsecutive5Xx",
        "enforcingConsecutiveGatewayFailure",
        "enforcingSuccessRate",
        "enforcingLocalOriginSuccessRate",
    }
    assert {detection[name] for name in enforcing} == {0}


@pytest.mark.parametrize("cluster", ["edge_grpc", "edge_http"])
def test_the_proxy_bounds_retries_and_leaves_load_to_the_edge(cluster):
    (limits,) = read_back(CLUSTER, cluster)["circuitBreakers"]["thresholds"]
    assert limits["retryBudget"] == {"budgetPercent": {"value": 20.0}, "minRetryConcurrency": 3}
    assert limits["maxRequests"] == limits["maxConnections"] == limits["maxPendingRequests"] == 2**31 - 1


def test_grpc_edges_are_dialled_over_pinged_http2_and_http_edges_over_http1():
    grpc = read_back(CLUSTER, "edge_grpc")["typedExtensionProtocolOptions"][HTTP_OPTIONS]["explicitHttpConfig"]
    assert grpc["http2ProtocolOptions"]["connectionKeepalive"] == {"interval": "2s", "timeout": "2s"}
    http = read_back(CLUSTER, "edge_http")["typedExtensionProtocolOptions"][HTTP_OPTIONS]["explicitHttpConfig"]
    assert http == {"httpProtocolOptions": {}}


def test_edges_are_grouped_by_priority_and_place_in_an_order_of_their_own():
    edges = ["10.0.0.3:1/10.0.0.3:2@us/a;1", "10.0.0.2:1/10.0.0.2:2@eu/b", "10.0.0.1:1/10.0.0.1:2@eu/a;draining"]
    assignment = read_back(ENDPOINT, "edge_http", edges=",".join(edges))
    assert assignment == read_back(ENDPOINT, "edge_http", edges=",".join(reversed(edges)))
    assert [
        (group.get("priority", 0), group["locality"], [host(endpoint) for endpoint in group["lbEndpoints"]])
        for group in assignment["endpoints"]
    ] == [
        (0, {"region": "eu", "zone": "a"}, [("10.0.0.1", 2, "DRAINING")]),
        (0, {"region": "eu", "zone": "b"}, [("10.0.0.2", 2, "UNKNOWN")]),
        (1, {"region": "us", "zone": "a"}, [("10.0.0.3", 2, "UNKNOWN")]),
    ]


def host(endpoint):
    socket = endpoint["endpoint"]["address"]["socketAddress"]
    return socket["address"], socket["portValue"], endpoint.get("healthStatus", "UNKNOWN")


def test_a_new_edge_changes_endpoints_and_nothing_else():
    one, two = snapshot(), snapshot("127.0.0.1:7001/127.0.0.1:7080,127.0.0.1:7011/127.0.0.1:7090")
    assert [kind for kind in ResourceType if one.versions[kind] != two.versions[kind]] == [ENDPOINT]


def test_without_edges_the_snapshot_is_still_valid():
    empty = build_snapshot(ProxyConfig(listen=Address("127.0.0.1", 8080)), [])
    assert ClusterLoadAssignment.parse(empty.by_type[ENDPOINT]["edge_grpc"].body).to_dict() == {
        "clusterName": "edge_grpc"
    }


@pytest.mark.parametrize(
    ("path", "logger"), [("/dev/stdout", "envoy.access_loggers.stdout"), ("/tmp/calls", "envoy.access_loggers.file")]
)
def test_the_access_log_is_off_until_it_has_a_path_and_never_logs_credentials(path, logger):
    assert "accessLog" not in connection_manager()
    (log,) = connection_manager(access_log=path)["accessLog"]
    assert (log["name"], log["typedConfig"].get("path", "/dev/stdout")) == (logger, path)
    fields = log["typedConfig"]["logFormat"]["jsonFormat"]
    assert fields["flags"] == "%RESPONSE_FLAGS%"
    assert "AUTHORIZATION" not in str(fields).upper()


def test_local_replies_over_http_have_the_format_of_an_api_error():
    of_auth, *mappers = connection_manager()["localReplyConfig"]["mappers"]
    for mapper in (of_auth, *mappers):
        over_http, _ = mapper["filter"]["andFilter"]["filters"]
        assert over_http["headerFilter"]["header"]["stringMatch"] == {"prefix": "application/grpc"}
        assert over_http["headerFilter"]["header"]["invertMatch"] is True
    assert of_auth["bodyFormatOverride"]["textFormatSource"] == {"inlineString": "%LOCAL_REPLY_BODY%"}
    errors = [mapper["bodyFormatOverride"]["jsonFormat"]["error"] for mapper in mappers]
    assert {error["message"] for error in errors} == {"%LOCAL_REPLY_BODY%"}
    assert [error["type"] for error in errors] == [
        "authentication_error",
        "permission_error",
        "invalid_request_error",
        "invalid_request_error",
        "server_error",
    ]


COLLECTOR = Collector.parse("http://otel:4317", 0.01)


def test_without_a_collector_the_proxies_record_no_spans_and_leave_request_ids_alone():
    manager = connection_manager()
    assert "tracing" not in manager
    request_ids = manager["requestIdExtension"]["typedConfig"]
    assert (request_ids["packTraceReason"], request_ids["useRequestIdForTraceSampling"]) == (False, False)


def test_with_a_collector_the_proxies_export_their_spans_to_it():
    tracing = connection_manager(collector=COLLECTOR)["tracing"]
    assert tracing["randomSampling"] == {"value": 1.0}
    assert tracing["spawnUpstreamSpan"]
    assert "PATH" not in tracing["operation"], "clients choose paths"
    config = tracing["provider"]["typedConfig"]
    assert config["grpcService"]["envoyGrpc"]["clusterName"] == "otlp"
    assert config["serviceName"] == "penstock-envoy"
    assert (CLUSTER, "otlp") in snapshot(collector=COLLECTOR).by_type[LISTENER]["front"].references
    cluster = read_back(CLUSTER, "otlp", collector=COLLECTOR)
    assert cluster["type"] == "STRICT_DNS"
    assert "transportSocket" not in cluster


def test_a_collector_with_tls_is_verified_by_its_name():
    collector = Collector.parse("https://otel.example", 1.0)
    assert (collector.address, collector.is_tls) == (Address("otel.example", 4317), True)
    context = read_back(CLUSTER, "otlp", collector=collector)["transportSocket"]["typedConfig"]
    validation = context["commonTlsContext"]["validationContext"]
    assert context["sni"] == "otel.example"
    assert validation["matchTypedSubjectAltNames"] == [{"sanType": "DNS", "matcher": {"exact": "otel.example"}}]
    assert "systemRootCerts" in validation


@pytest.mark.parametrize("endpoint", ["unix:/tmp/otel", "ftp://otel:21", "http://"])
def test_a_collector_needs_an_address(endpoint):
    with pytest.raises(ValueError, match="is not http"):
        Collector.parse(endpoint, 1.0)
