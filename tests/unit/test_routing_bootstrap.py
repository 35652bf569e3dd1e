import json
import subprocess
import sys

import pytest

from penstock.routing.bootstrap import bootstrap
from penstock.routing.edges.edge_spec import InvalidEdge


def edge_bootstrap(**options):
    return bootstrap("127.0.0.1:7006", "127.0.0.1:9901", "front-1", **options)


def clusters(document):
    return {cluster["name"]: cluster for cluster in document["static_resources"]["clusters"]}


def test_all_resources_except_the_control_plane_cluster_come_by_delta_xds():
    document = edge_bootstrap()
    assert clusters(document).keys() == {"xds"}
    assert document["static_resources"]["listeners"] == []
    assert document["dynamic_resources"]["ads_config"]["api_type"] == "DELTA_GRPC"
    assert document["dynamic_resources"]["lds_config"] == {"resource_api_version": "V3", "ads": {}}
    assert document["node"]["id"] == "front-1"


def test_a_control_plane_by_name_is_looked_up_and_one_by_address_is_not():
    assert clusters(edge_bootstrap())["xds"]["type"] == "STATIC"
    assert clusters(bootstrap("routing:7006", "127.0.0.1:9901"))["xds"]["type"] == "STRICT_DNS"


def test_probes_reach_two_paths_and_not_the_admin_interface():
    document = edge_bootstrap(ready_address="0.0.0.0:9902")
    (listener,) = document["static_resources"]["listeners"]
    routes = listener["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]["virtual_hosts"][0]["routes"]
    assert [route["match"] for route in routes] == [{"path": "/ready"}, {"path": "/stats/prometheus"}]
    assert document["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"


def test_a_connection_that_only_resets_calls_is_limited():
    (layer,) = edge_bootstrap()["layered_runtime"]["layers"]
    assert layer["static_layer"] == {
        "overload.premature_reset_total_stream_count": 500,
        "overload.premature_reset_min_stream_lifetime_seconds": 1,
        "http.max_requests_per_io_cycle": 1,
    }


def test_without_a_limit_of_memory_there_is_only_the_limit_of_connections():
    overload = edge_bootstrap()["overload_manager"]
    assert [each["name"] for each in overload["resource_monitors"]] == [
        "envoy.resource_monitors.global_downstream_max_connections"
    ]
    assert "actions" not in overload


def test_near_its_limit_of_memory_a_proxy_resets_the_largest_streams_before_it_refuses_calls():
    overload = edge_bootstrap(max_heap_bytes=2**29)["overload_manager"]
    (heap,) = (each for each in overload["resource_monitors"] if each["name"].endswith("fixed_heap"))
    assert heap["typed_config"]["max_heap_size_bytes"] == 2**29
    assert [each["name"].rpartition(".")[2] for each in overload["actions"]] == [
        "shrink_heap",
        "reset_high_memory_stream",
        "stop_accepting_connections",
        "stop_accepting_requests",
    ]


def test_an_invalid_address_is_rejected():
    with pytest.raises(InvalidEdge):
        bootstrap("routing", "127.0.0.1:9901")


def test_the_bootstrap_is_printed_without_loading_the_envoy_api():
    script = (
        "import sys; from penstock.routing.bootstrap import main; main(); assert 'envoy_data_plane' not in sys.modules"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script, "--xds", "127.0.0.1:7006", "--node", "front-1"], capture_output=True, check=True
    )
    assert json.loads(printed.stdout) == edge_bootstrap()
