import pytest

from penstock.chassis.config import ConfigError, load
from penstock.routing.config import RoutingConfig


def test_without_settings_routing_serves_one_edge_on_this_host():
    config = load(RoutingConfig, "routing", {})
    assert (config.listen, config.envoy_listen) == ("127.0.0.1:7006", "127.0.0.1:8080")
    assert config.edges == "127.0.0.1:7001/127.0.0.1:7080"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EDGES", "127.0.0.1:7001"),
        ("EDGES", ""),
        ("ENVOY_LISTEN", "8080"),
        ("LOOK_EVERY", "0"),
        ("PING_EVERY", "-1"),
        ("ENVOY_LISTEN", "0.0.0.0:8080"),  # in plaintext
        ("DOOR_CERTIFICATE", "/tls/tls.crt"),  # without its key
        ("REDIRECT_LISTEN", "127.0.0.1:8081"),  # without TLS there is nothing to redirect to
        ("HSTS_MAX_AGE", "-1"),
        ("AUTHS", "auth"),
        ("AUTH_CHECK_TIMEOUT", "0"),
        ("MAX_STREAMS_PER_CONNECTION", "0"),
        ("REGION_LISTEN", "127.0.0.1:7443"),  # without a region
        ("REGIONS", "us=us.example:7443"),  # without a region
        ("REGIONS_STATE", "/state/regions.json"),  # without other regions
        ("REGION_RETURN_STEP", "0"),
        ("PROXY_STATS", "envoy"),
        ("EGDES", "127.0.0.1:7001/127.0.0.1:7080"),
    ],
)
def test_invalid_settings_stop_the_start(name, value):
    with pytest.raises(ConfigError):
        load(RoutingConfig, "routing", {f"PENSTOCK_ROUTING_{name}": value})


def test_a_file_of_edges_is_read_later():
    config = load(RoutingConfig, "routing", {"PENSTOCK_ROUTING_EDGES": "file:///etc/penstock/edges"})
    assert config.edges == "file:///etc/penstock/edges"


@pytest.mark.parametrize(
    "settings", [{"DOOR_PLAINTEXT": "true"}, {"DOOR_CERTIFICATE": "/tls/tls.crt", "DOOR_KEY": "/tls/tls.key"}]
)
def test_a_door_off_loopback_has_tls_or_is_plaintext_by_name(settings):
    given = {f"PENSTOCK_ROUTING_{name}": value for name, value in settings.items()}
    config = load(RoutingConfig, "routing", {"PENSTOCK_ROUTING_ENVOY_LISTEN": "0.0.0.0:8080", **given})
    assert config.envoy_listen == "0.0.0.0:8080"


def test_auth_processes_are_named_by_address_or_by_dns():
    config = load(RoutingConfig, "routing", {"PENSTOCK_ROUTING_AUTHS": "127.0.0.1:7002,dns:///auth:7002"})
    assert [str(each) for each in config.auth_addresses] == ["127.0.0.1:7002", "auth:7002"]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"PENSTOCK_ROUTING_REGIONS": "us"}, "NAME=HOST:PORT"),
        ({"PENSTOCK_ROUTING_REGIONS": "eu=eu.example:7443"}, "eu is the own region"),
        ({"PENSTOCK_ROUTING_AUTHS": ""}, "AUTHS must be set"),
        ({"PENSTOCK_ROUTING_REGION_LISTEN": "0.0.0.0:7443"}, "envoy_secrets"),
    ],
)
def test_regions_need_doors_auth_and_certificates(changed, problem):
    settings = {
        "PENSTOCK_REGION": "eu",
        "PENSTOCK_ROUTING_AUTHS": "auth:7007",
        "PENSTOCK_ROUTING_REGIONS": "us=us.example:7443,ap=ap.example:7443",
        "PENSTOCK_ROUTING_REGION_LISTEN": "127.0.0.1:7443",
    }
    config = load(RoutingConfig, "routing", settings)
    assert [str(each.door) for each in config.other_regions] == ["us.example:7443", "ap.example:7443"]
    with pytest.raises(ConfigError, match=problem):
        load(RoutingConfig, "routing", settings | changed)
