"""Checks of a proxy, and an Envoy that asks a real auth before each request."""

import json
from contextlib import asynccontextmanager

import httpx

from envoy_proxy import ENVOY, logged_process
from free_ports import free_port
from penstock.auth.ext_authz.http_check import CHECK_PATH

CONNECTION_MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
EXT_AUTHZ = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz"
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
ROUTER = "envoy.extensions.filters.http.router.v3.Router"
CHECK = CHECK_PATH.decode()


def checked_headers(bearer="", source="203.0.113.9", **more) -> dict[str, str]:
    """The headers of a check, as Envoy sends them for a request of `source`."""
    headers = {"x-forwarded-for": source} | {name.replace("_", "-"): value for name, value in more.items()}
    return headers | {"authorization": f"Bearer {bearer}"} if bearer else headers


async def check(address, bearer="", source="203.0.113.9", **more) -> httpx.Response:
    """Ask auth at `address` about a request."""
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        return await client.post(CHECK, headers=checked_headers(bearer, source, **more))


def any_of(kind, **fields):
    return {"@type": f"type.googleapis.com/{kind}", **fields}


def cluster(name, address, *, is_http2):
    host, _, port = address.rpartition(":")
    endpoint = {"address": {"socket_address": {"address": host, "port_value": int(port)}}}
    protocol = {"http2_protocol_options": {}} if is_http2 else {"http_protocol_options": {}}
    return {
        "name": name,
        "type": "STATIC",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}]},
        "typed_extension_protocol_options": {HTTP_OPTIONS: any_of(HTTP_OPTIONS, explicit_http_config=protocol)},
    }


def filters():
    sent, passed = ["authorization", "x-api-key", "content-type", "x-forwarded-for"], ["x-penstock-identity"]
    service = {
        "server_uri": {"uri": "http://auth", "cluster": "auth", "timeout": "2s"},
        "path_override": CHECK,
        "authorization_response": {"allowed_upstream_headers": {"patterns": [{"exact": each} for each in passed]}},
    }
    check = any_of(
        EXT_AUTHZ,
        transport_api_version="V3",
        http_service=service,
        failure_mode_allow=False,
        allowed_headers={"patterns": [{"exact": each} for each in sent]},
    )
    return [
        {"name": "envoy.filters.http.ext_authz", "typed_config": check},
        {"name": "envoy.filters.http.router", "typed_config": any_of(ROUTER)},
    ]


def bootstrap(port, auth, grpc_backend, http_backend):
    to_grpc = {"match": {"prefix": "/", "grpc": {}}, "route": {"cluster": "grpc", "timeout": "0s"}}
    routes = [to_grpc, {"match": {"prefix": "/"}, "route": {"cluster": "http", "timeout": "0s"}}]
    host = {"name": "all", "domains": ["*"], "routes": routes}
    manager = any_of(
        CONNECTION_MANAGER,
        stat_prefix="door",
        codec_type="AUTO",
        use_remote_address=True,
        route_config={"name": "routes", "virtual_hosts": [host]},
        http_filters=filters(),
    )
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    listener = {
        "name": "door",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [chain],
    }
    clusters = [
        cluster("auth", auth, is_http2=False),
        cluster("grpc", grpc_backend, is_http2=True),
        cluster("http", http_backend, is_http2=False),
    ]
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


@asynccontextmanager
async def authorizing_envoy(folder, auth, backend):
    """The address of an Envoy in front of `backend` that asks auth's listener for checks at address `auth`."""
    port, file = free_port(), folder / "authorizing.json"
    file.write_text(
        json.dumps(bootstrap(port, auth, f"127.0.0.1:{backend.grpc_port}", f"127.0.0.1:{backend.http_port}"))
    )
    async with logged_process(ENVOY, "-c", file, "--concurrency", "1", "--disable-hot-restart") as envoy:
        await envoy.wait_for_line("starting main dispatch loop")
        yield f"127.0.0.1:{port}"
