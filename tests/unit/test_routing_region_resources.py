"""The resources of regions: the region door, clusters of other regions, and routes by what a tenant allows."""

import re
from functools import cache

import pytest
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration

from penstock.routing.edges.edge_spec import Address, parse_specs
from penstock.routing.regions.region_spec import parse_regions
from penstock.routing.regions.region_state import RegionState
from penstock.routing.regions.traffic_plan import TrafficPlan
from penstock.routing.resources.build import ProxyConfig, build_snapshot
from penstock.routing.resources.types import ResourceType

SECRET, CLUSTER, ENDPOINT, LISTENER, ROUTE = ResourceType
MESSAGES = {CLUSTER: Cluster, ENDPOINT: ClusterLoadAssignment, LISTENER: Listener, ROUTE: RouteConfiguration}
NORMAL = RegionState()
NORMAL_TEXT = NORMAL.text()


@cache  # a build takes 0.3 s
def snapshot(state=NORMAL_TEXT, secrets=""):
    """Snapshot of the proxies of region eu with two other regions."""
    regions = parse_regions(("us=us.example:7443", "ap=ap.example:7443"), own="eu")
    proxy = ProxyConfig(
        listen=Address("127.0.0.1", 8080),
        auths=(Address("auth", 7007),),
        secrets=secrets,
        trust_domain="mesh.example",
        region="eu",
        region_listen=Address("127.0.0.1", 7443),
        region_auths=(Address("auth", 7002),),
        regions=regions,
    )
    plan = TrafficPlan.of("eu", [each.name for each in regions], RegionState.parse(state), 1_000.0, 10.0)
    edges = [spec.template for spec in parse_specs("127.0.0.1:7001/127.0.0.1:7080")]
    return build_snapshot(proxy, edges, None, plan)


@cache
def read_back(kind, name, state=NORMAL_TEXT, secrets=""):
    return MESSAGES[kind].parse(snapshot(state, secrets).by_type[kind][name].body).to_dict()


def routes(name, state=NORMAL, prefix="/penstock.v1.Inference/"):
    (host,) = read_back(ROUTE, name, state.text())["virtualHosts"]
    return [each for each in host["routes"] if each["match"].get("prefix") == prefix]


def target_of(found, regions):
    """The target of the first route that takes a call with a credential. `regions` is the word of auth; None: none."""
    for each in found:
        headers = each["match"].get("headers", [])
        if all(matches(header, regions) for header in headers):
            action = each.get("route")
            if action is None:
                return each["directResponse"]["status"]
            if "weightedClusters" in action:
                return {part["name"]: part["weight"] for part in action["weightedClusters"]["clusters"]}
            return action["cluster"]
    raise AssertionError("no route takes the call")


def matches(header, regions):
    if header["name"] != "x-penstock-regions":  # those of a missing credential
        return False
    if regions is None:
        return False
    return header.get("presentMatch") or bool(re.fullmatch(header["stringMatch"]["safeRegex"]["regex"], regions))


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        (None, "edge_grpc"),
        ("*", "edge_grpc_eu_us_ap"),
        ("ap,us,eu", "edge_grpc_eu_us_ap"),
        ("eu, ap", "edge_grpc_eu_ap"),
        ("eu", "edge_grpc"),
        ("us", 403),  # auth refuses it first
        ("us,ap,sa", 403),
        ("sa", 403),
        ("eu-1,aus", 403),
    ],
)
def test_the_door_sends_a_call_where_auth_allows_it(regions, expected):
    assert target_of(routes("edges"), regions) == expected


def test_drains_and_weights_change_routes_alone():
    plain = snapshot()
    drained, weighted = NORMAL.with_drained("eu"), NORMAL.with_weight("us", 20)
    assert target_of(routes("edges", drained), "*") == "edge_grpc_us_ap_eu"
    assert target_of(routes("edges", drained), None) == "edge_grpc"
    assert target_of(routes("edges", NORMAL.with_drained("us")), "*") == "edge_grpc_eu_ap"
    shares = target_of(routes("edges", weighted), "*")
    assert shares == {"edge_grpc_eu_us_ap": 8000, "edge_grpc_us_eu_ap": 2000}
    for state in (drained, weighted):
        changed = snapshot(state.text())
        assert [kind for kind in ResourceType if changed.versions[kind] != plain.versions[kind]] == [ROUTE]


def test_calls_about_what_one_region_stores_stay():
    for prefix in ("/v1/files", "/v1/batches", "/v1/responses/", "/penstock.v1.Batches/"):
        own = "edge_grpc" if "penstock" in prefix else "edge_http"
        for regions, expected in (("*", own), (None, own), ("us,eu", own), ("us", 403)):
            assert target_of(routes("edges", prefix=prefix), regions) == expected
        assert target_of(routes("region_door", prefix=prefix), "*") == 404


def test_the_region_door_leads_to_own_edges_and_only_with_the_word_of_auth():
    for regions, expected in (("*", "edge_grpc"), ("us,eu", "edge_grpc"), ("us", 403), (None, 403)):
        assert target_of(routes("region_door"), regions) == expected
    (resource,) = [snapshot().by_type[ROUTE]["region_door"]]
    assert {name for _, name in resource.references} == {"edge_grpc", "edge_http", "edge_guests", "auth_quota"}


def test_only_the_region_door_serves_edges_of_other_regions_and_not_while_it_is_drained():
    guests = "/penstock.mesh.v1.RegionService/"
    assert routes("edges", prefix=guests) == []
    assert target_of(routes("region_door", prefix=guests), None) == "edge_guests"
    assert target_of(routes("region_door", NORMAL.with_drained("eu"), prefix=guests), None) == 503
    (host,) = read_back(ROUTE, "region_door", NORMAL.with_drained("eu").text())["virtualHosts"]
    assert [each["name"] for each in host["routes"]][:3] == ["quota", "guests_drained", "health_drained"]
    assert read_back(CLUSTER, "edge_guests")["edsClusterConfig"]["serviceName"] == "edge_grpc"


def test_only_the_region_door_leads_to_auth_also_while_it_is_drained_and_to_auth_alone():
    quota = "/penstock.mesh.v1.RegionQuotaService/"
    assert routes("edges", prefix=quota) == []
    for state in (NORMAL, NORMAL.with_drained("eu")):
        assert target_of(routes("region_door", state, prefix=quota), None) == "auth_quota"
    cluster = read_back(CLUSTER, "auth_quota", secrets="/run/secrets")
    (places,) = cluster["loadAssignment"]["endpoints"]
    (host,) = places["lbEndpoints"]
    assert host["endpoint"]["address"]["socketAddress"] == {"address": "auth", "portValue": 7002}
    assert cluster["transportSocket"]["typedConfig"]["sni"] == "auth.penstock.internal"


def test_a_region_keeps_its_calls_while_one_edge_is_healthy():
    for name in ("edge_grpc", "edge_http"):
        assert read_back(ENDPOINT, name)["policy"] == {"overprovisioningFactor": 10_000}
    assert (
        "policy"
        not in ClusterLoadAssignment.parse(
            build_snapshot(ProxyConfig(listen=Address("127.0.0.1", 8080)), []).by_type[ENDPOINT]["edge_grpc"].body
        ).to_dict()
    )


def test_other_regions_are_dialled_over_http2_and_must_prove_that_they_are_proxies():
    cluster = read_back(CLUSTER, "region_us", secrets="/run/secrets")
    (check,) = cluster["healthChecks"]
    assert check["httpHealthCheck"] == {"path": "/health", "codecClientType": "HTTP2"}
    context = cluster["transportSocket"]["typedConfig"]
    assert context["sni"] == "envoy.penstock.internal"
    assert "transportSocket" not in read_back(CLUSTER, "region_us")


def test_the_region_door_requires_the_certificate_of_a_proxy_an_edge_or_auth_and_tells_them_apart():
    (chain,) = read_back(LISTENER, "region_door", secrets="/run/secrets")["filterChains"]
    context = chain["transportSocket"]["typedConfig"]
    assert context["requireClientCertificate"] is True
    common = context["commonTlsContext"]["combinedValidationContext"]["defaultValidationContext"]
    (expected,) = common["matchTypedSubjectAltNames"]
    pattern = expected["matcher"]["safeRegex"]["regex"]
    assert expected["sanType"] == "URI"
    admitted = [
        uri
        for domain in ("mesh.example", "meshXexample")
        for tier in ("envoy", "edge", "auth", "worker", "operator")
        if re.fullmatch(pattern, uri := f"spiffe://{domain}/penstock/{tier}/{tier}-1")
    ]
    assert admitted == [f"spiffe://mesh.example/penstock/{tier}/{tier}-1" for tier in ("envoy", "edge", "auth")]
    peers, *_ = chain["filters"][0]["typedConfig"]["httpFilters"]
    assert set(peers["typedConfig"]["rules"]["policies"]) == {"auth", "edge", "envoy"}


def test_the_region_door_keeps_the_regions_that_another_proxy_states_and_no_other_reserved_header():
    (chain,) = read_back(LISTENER, "region_door")["filterChains"]
    manager = chain["filters"][0]["typedConfig"]
    (extension,) = manager["earlyHeaderMutationExtensions"]
    removed = [each["removeOnMatch"]["keyMatcher"]["prefix"] for each in extension["typedConfig"]["mutations"][2:5]]
    assert removed == ["x-penstock-", "x-forwarded-client-cert", "x-envoy-auth-"]
    assert manager["useRemoteAddress"] is False
