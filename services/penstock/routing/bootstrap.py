"""Envoy's bootstrap file: the proxy's node id and the address of the control plane, which serves all else.

It is made of plain dictionaries, so that the command line can write it without loading the Envoy API.
`python -m penstock.routing.bootstrap --xds routing:7006` prints it as JSON, which is also YAML.
"""

import argparse
import json
import sys
from typing import Any

from penstock.chassis.security.identity import server_name
from penstock.routing.edges.edge_spec import Address
from penstock.routing.secrets import AUTHORITIES, IDENTITY, secret_config

Json = dict[str, Any]

XDS_CLUSTER = "xds"
ADMIN_CLUSTER = "admin"


def bootstrap(
    xds_address: str,
    admin_address: str,
    node_id: str = "",
    *,
    ready_address: str = "",
    region: str = "",
    zone: str = "",
    secrets: str = "",
) -> Json:
    """Return the bootstrap configuration. Addresses are host:port.

    The admin interface can stop the proxy, so it should listen on loopback; `ready_address` serves only the read-only
    paths that probes and scrapers need. If the node id is empty, `envoy --service-node` sets it. `secrets` is the
    folder with the files of `penstock.routing.secrets`; empty: plaintext to the control plane.
    """
    admin = Address.parse(admin_address)
    clusters = [_xds_cluster(Address.parse(xds_address), secrets)]
    listeners = []
    if ready_address:
        clusters.append(_cluster(ADMIN_CLUSTER, admin))
        listeners.append(_ready_listener(Address.parse(ready_address)))
    return {
        "node": {"id": node_id, "cluster": "penstock-front", "locality": {"region": region, "zone": zone}},
        "admin": {"address": _socket(admin)},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [{"envoy_grpc": {"cluster_name": XDS_CLUSTER}}],
            },
            "lds_config": {"resource_api_version": "V3", "ads": {}},
            "cds_config": {"resource_api_version": "V3", "ads": {}},
        },
        "static_resources": {"clusters": clusters, "listeners": listeners},
        "layered_runtime": {"layers": [{"name": "penstock", "static_layer": _runtime()}]},
        "overload_manager": {"resource_monitors": [_connection_limit()]},
    }


def _runtime() -> Json:
    return {
        # Envoy closes a connection, with its healthy streams, if half of this number of calls ended early, as it takes
        # them for an attack. Cancelled waits look the same, and one busy client exceeds the default of 500.
        "overload.premature_reset_total_stream_count": 100_000,
    }


def _connection_limit() -> Json:
    monitor = "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
    return {
        "name": "envoy.resource_monitors.global_downstream_max_connections",
        "typed_config": {"@type": f"type.googleapis.com/{monitor}", "max_active_downstream_connections": 50_000},
    }


def _xds_cluster(address: Address, secrets: str) -> Json:
    http = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    keepalive = {"interval": "5s", "timeout": "2s"}  # detects a frozen control plane; traffic does not wait for it
    options = {
        "@type": f"type.googleapis.com/{http}",
        "explicit_http_config": {"http2_protocol_options": {"connection_keepalive": keepalive}},
    }
    xds = _cluster(XDS_CLUSTER, address) | {"typed_extension_protocol_options": {http: options}}
    return xds | {"transport_socket": _mutual_tls(secrets)} if secrets else xds


def _mutual_tls(secrets: str) -> Json:
    """Connect to processes of tier routing alone, with the certificate in the folder `secrets`."""
    name = server_name("routing")
    validation = {
        "default_validation_context": {
            "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": name}}]
        },
        "validation_context_sds_secret_config": secret_config(secrets, AUTHORITIES),
    }
    common = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"},
        "tls_certificate_sds_secret_configs": [secret_config(secrets, IDENTITY)],
        "combined_validation_context": validation,
        "alpn_protocols": ["h2"],
    }
    context = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
    config = {"@type": context, "sni": name, "common_tls_context": common}
    return {"name": "envoy.transport_sockets.tls", "typed_config": config}


def _cluster(name: str, address: Address) -> Json:
    endpoint = {"endpoint": {"address": _socket(address)}}
    return {
        "name": name,
        "type": "STATIC" if address.is_literal else "STRICT_DNS",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _ready_listener(address: Address) -> Json:
    manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
    routes = [
        {"match": {"path": path}, "route": {"cluster": ADMIN_CLUSTER}} for path in ("/ready", "/stats/prometheus")
    ]
    config = {
        "@type": manager,
        "stat_prefix": "ready",
        "route_config": {"virtual_hosts": [{"name": ADMIN_CLUSTER, "domains": ["*"], "routes": routes}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": router}}],
    }
    network = {"name": "envoy.filters.network.http_connection_manager", "typed_config": config}
    return {
        "name": "ready",
        "address": _socket(address),
        "filter_chains": [{"filters": [network]}],
        "ignore_global_conn_limit": True,  # probes must reach a proxy that is at its connection limit
    }


def _socket(address: Address) -> Json:
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def main() -> None:
    flags = argparse.ArgumentParser(prog="python -m penstock.routing.bootstrap", description=__doc__)
    flags.add_argument("--xds", required=True, help="host:port of the control plane")
    flags.add_argument("--admin", default="127.0.0.1:9901", help="host:port of Envoy's admin interface")
    flags.add_argument("--ready", default="", help="host:port for /ready and /stats/prometheus; none if empty")
    flags.add_argument("--secrets", default="", help="folder of the proxy's secrets; plaintext if empty")
    flags.add_argument("--node", default="", help="node id; `envoy --service-node` sets it if empty")
    options = flags.parse_args()
    made = bootstrap(options.xds, options.admin, options.node, ready_address=options.ready, secrets=options.secrets)
    json.dump(made, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
