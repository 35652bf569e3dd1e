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
MAX_CONNECTIONS = 50_000  # of clients; a file descriptor each


def bootstrap(
    xds_address: str,
    admin_address: str,
    node_id: str = "",
    *,
    ready_address: str = "",
    region: str = "",
    zone: str = "",
    secrets: str = "",
    max_heap_bytes: int = 0,
) -> Json:
    """Return the bootstrap configuration. Addresses are host:port.

    The admin interface can stop the proxy, so it should listen on loopback; `ready_address` serves only the read-only
    paths that probes and scrapers need. If the node id is empty, `envoy --service-node` sets it. `secrets` is the
    folder with the files of `penstock.routing.secrets`; empty: plaintext to the control plane. Near `max_heap_bytes` of
    memory the proxy sheds load; 0: no limit.
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
        "overload_manager": _overload(max_heap_bytes),
    }


def _runtime() -> Json:
    return {
        # Envoy closes a connection if half of this number of its calls ended within 1 s and before their response
        # headers, and these are more than half of its calls: a client that only resets calls. The edge sends the
        # headers once it has admitted a call, so cancelled waits in the queue do not count.
        "overload.premature_reset_total_stream_count": 500,
        "overload.premature_reset_min_stream_lifetime_seconds": 1,
        # The other calls of one read wait for the next turn of the loop, so that one connection does not delay the
        # others. A call that its client has reset by then costs no work upstream.
        "http.max_requests_per_io_cycle": 1,
    }


def _overload(max_heap_bytes: int) -> Json:
    connections = "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
    limit = {"max_active_downstream_connections": MAX_CONNECTIONS}
    monitors = [_monitor("global_downstream_max_connections", connections, limit)]
    if not max_heap_bytes:
        return {"resource_monitors": monitors}
    heap = "envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig"
    monitors.append(_monitor("fixed_heap", heap, {"max_heap_size_bytes": max_heap_bytes}))
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": monitors,
        "actions": [
            _heap_action("shrink_heap", {"threshold": {"value": 0.8}}),
            # From 85 % on, the streams that hold most bytes are reset, more of them up to 95 %.
            _heap_action(
                "reset_high_memory_stream", {"scaled": {"scaling_threshold": 0.85, "saturation_threshold": 0.95}}
            ),
            _heap_action("stop_accepting_connections", {"threshold": {"value": 0.95}}),
            _heap_action("stop_accepting_requests", {"threshold": {"value": 0.98}}),
        ],
        "buffer_factory_config": {"minimum_account_to_track_power_of_two": 17},  # streams that hold 128 KiB or more
    }


def _monitor(name: str, kind: str, config: Json) -> Json:
    typed = {"@type": f"type.googleapis.com/{kind}", **config}
    return {"name": f"envoy.resource_monitors.{name}", "typed_config": typed}


def _heap_action(name: str, trigger: Json) -> Json:
    triggers = [{"name": "envoy.resource_monitors.fixed_heap", **trigger}]
    return {"name": f"envoy.overload_actions.{name}", "triggers": triggers}


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
    flags.add_argument("--max-heap-mib", default=0, type=int, help="memory near which the proxy sheds load; 0: any")
    options = flags.parse_args()
    limits = {"max_heap_bytes": options.max_heap_mib * 2**20}
    document = bootstrap(
        options.xds, options.admin, options.node, ready_address=options.ready, secrets=options.secrets, **limits
    )
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
