"""Settings of routing."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from penstock.chassis.config import ServiceConfig, setting
from penstock.chassis.security.process import is_loopback_address
from penstock.routing.edges.discovery import FILE_SCHEME
from penstock.routing.edges.edge_spec import DNS_SCHEME, Address, parse_specs
from penstock.routing.regions.region_spec import Region, parse_regions

CONFIG_MAP_SCHEME = "configmap:"
_CONFIG_MAP = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutingConfig(ServiceConfig):
    """Settings of `PENSTOCK_ROUTING_*`."""

    former_names: ClassVar[Mapping[str, str]] = {
        "look_every": "discovery_interval",
        "ping_every": "keepalive_interval",
    }

    listen: str = setting("127.0.0.1:7006", "Address of the xDS server.", unit="host:port")
    drain_grace: float = setting(
        1.0, "Longest drain after SIGTERM. Proxies keep their last configuration without routing.", unit="s"
    )
    edges: str = setting(
        "127.0.0.1:7001/127.0.0.1:7080",
        "Edges, separated by commas: GRPC_HOST:PORT/HTTP_HOST:PORT[@REGION[/ZONE]][;PRIORITY][;draining], or"
        " dns:///NAME:GRPC_PORT/HTTP_PORT with the same endings for one edge per DNS record, or file:///PATH of such"
        " a list with one edge per line.",
    )
    discovery_interval: float = setting(2.0, "Time between two reads of the names and files in `edges`.", unit="s")
    envoy_listen: str = setting(
        "127.0.0.1:8080", "Address of the door: the port on which the proxies accept gRPC and HTTP.", unit="host:port"
    )
    door_certificate: str = setting(
        "",
        "PEM file with the certificate chain of the door, read again when it changes. Empty: the door is plaintext.",
        unit="path",
    )
    door_key: str = setting("", "PEM file with the private key of `door_certificate`.", unit="path")
    door_plaintext: bool = setting(
        False, "Allow a plaintext door off loopback, for example behind a load balancer that terminates TLS."
    )
    hsts_max_age: int = setting(
        0, "`max-age` of the header `strict-transport-security` of responses over TLS. 0: it is not sent.", unit="s"
    )
    redirect_listen: str = setting(
        "",
        "Address on which the proxies redirect plaintext HTTP to the door. Needs `door_certificate`. Empty: none.",
        unit="host:port",
    )
    auths: tuple[str, ...] = setting(
        (),
        "Addresses of PENSTOCK_AUTH_CHECK_LISTEN, which the proxies ask about each call: host:port or"
        " dns:///name:port. Empty: none; the edges alone identify callers.",
    )
    auth_check_timeout: float = setting(
        0.25,
        "Time for auth to answer a proxy. After it, a call passes to the edge, which identifies the caller itself.",
        unit="s",
    )
    max_streams_per_connection: int = setting(
        100, "Concurrent calls of one client connection over HTTP/2. A client with more calls opens more connections."
    )
    access_log: str = setting(
        "", "File to which proxies write one JSON line per call, or /dev/stdout. Empty: none.", unit="path"
    )
    keepalive_interval: float = setting(
        2.0,
        "Interval of HTTP/2 pings from a proxy to an edge, and the time for an answer before the streams are closed.",
        unit="s",
    )

    envoy_secrets: str = setting(
        "",
        "Folder on the host of each proxy with the files of `penstock.routing.secrets`, which name its certificate "
        "and the mesh's authorities. Proxies then use mutual TLS to edges. Empty: plaintext.",
        unit="path",
    )

    region_listen: str = setting(
        "",
        "Address of the region door: the port on which the proxies accept proxies and edges of other regions, by mutual"
        " TLS. Needs `region`. Empty: none.",
        unit="host:port",
    )
    regions: tuple[str, ...] = setting(
        (),
        "Other regions in order of preference: NAME=HOST:PORT of the region door of each, at most 3. Needs `region` and"
        " `auths`.",
    )
    region_auths: tuple[str, ...] = setting(
        (),
        "Addresses of the gRPC servers of auth, to which the region door leads auth of other regions: host:port or"
        " dns:///name:port. Set it in the home region of tenants. Needs `region_listen`. Empty: none.",
    )
    regions_state: str = setting(
        "",
        "File in which drains and weights of regions are kept, the same for all replicas of routing, or configmap:NAME"
        " for a ConfigMap of the own namespace. Empty: regions cannot be drained or weighted.",
        unit="path or configmap:NAME",
    )
    region_return_step: float = setting(
        10.0,
        "Time of each step of a region's return after a drain. It gets 25, 50, 75 and 100 % of its calls.",
        unit="s",
    )
    proxy_stats: tuple[str, ...] = setting(
        (),
        "Addresses of proxies that serve `/stats/prometheus`, for the health and open calls of regions: host:port or"
        " dns:///name:port. Empty: both are unknown.",
    )

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        Address.parse(self.envoy_listen)
        if not self.edges.startswith(FILE_SCHEME):
            parse_specs(self.edges)
        positive = ("discovery_interval", "keepalive_interval", "auth_check_timeout", "max_streams_per_connection")
        for name in (*positive, "region_return_step"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")
        for address in (*self.auths, *self.region_auths, *self.proxy_stats):
            Address.parse(address.removeprefix(DNS_SCHEME))
        self._check_door()
        self._check_regions()

    def _check_door(self) -> None:
        if bool(self.door_certificate) != bool(self.door_key):
            raise ValueError("door_certificate and door_key must be set together")
        if not (self.door_certificate or self.door_plaintext or is_loopback_address(self.envoy_listen)):
            text = "without TLS must be on loopback; set door_certificate and door_key, or door_plaintext to allow it"
            raise ValueError(f"envoy_listen {text}")
        if self.redirect_listen:
            Address.parse(self.redirect_listen)
            if not self.door_certificate:
                raise ValueError("redirect_listen needs door_certificate, because it redirects to https")
        if self.hsts_max_age < 0:
            raise ValueError("hsts_max_age must not be negative")

    def _check_regions(self) -> None:
        parse_regions(self.regions, own=self.region)
        if (self.regions or self.region_listen) and not self.region:
            raise ValueError("region must be set with regions and region_listen; set PENSTOCK_REGION")
        if self.regions and not self.auths:
            raise ValueError("auths must be set with regions, because auth says which calls may leave a region")
        if self.regions_state and not self.regions:
            raise ValueError("regions_state needs regions")
        if self.region_auths and not self.region_listen:
            raise ValueError("region_auths needs region_listen, behind which auth of other regions reaches them")
        config_map_name(self.regions_state)
        if not self.region_listen:
            return
        Address.parse(self.region_listen)
        if not (self.envoy_secrets or self.insecure or is_loopback_address(self.region_listen)):
            raise ValueError("region_listen without envoy_secrets must be on loopback, unless PENSTOCK_INSECURE is set")

    @property
    def keepalive(self) -> timedelta:
        return timedelta(seconds=self.keepalive_interval)

    @property
    def auth_addresses(self) -> tuple[Address, ...]:
        return _addresses(self.auths)

    @property
    def region_auth_addresses(self) -> tuple[Address, ...]:
        return _addresses(self.region_auths)

    @property
    def other_regions(self) -> tuple[Region, ...]:
        return parse_regions(self.regions, own=self.region)


def _addresses(texts: tuple[str, ...]) -> tuple[Address, ...]:
    return tuple(Address.parse(each.removeprefix(DNS_SCHEME)) for each in texts)


def config_map_name(place: str) -> str:
    """Return the name of the ConfigMap of configmap:NAME, empty for a path. Raises ValueError if it cannot be one."""
    name = place.removeprefix(CONFIG_MAP_SCHEME)
    if name == place:
        return ""
    if not _CONFIG_MAP.fullmatch(name):
        raise ValueError(f"regions_state must name a ConfigMap after {CONFIG_MAP_SCHEME}, which {name!r} is not")
    return name
