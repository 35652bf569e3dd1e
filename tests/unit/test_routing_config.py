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
        ("EGDES", "127.0.0.1:7001/127.0.0.1:7080"),
    ],
)
def test_invalid_settings_stop_the_start(name, value):
    with pytest.raises(ConfigError):
        load(RoutingConfig, "routing", {f"PENSTOCK_ROUTING_{name}": value})


def test_a_file_of_edges_is_read_later():
    config = load(RoutingConfig, "routing", {"PENSTOCK_ROUTING_EDGES": "file:///etc/penstock/edges"})
    assert config.edges == "file:///etc/penstock/edges"
