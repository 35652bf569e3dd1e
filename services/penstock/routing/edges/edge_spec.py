"""Where the edges are, as an operator writes it and as the proxies are told."""

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self

DNS_SCHEME = "dns:///"


class InvalidEdge(ValueError):
    """An edge is described in a way nobody can dial."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """`host:port`, or `[v6]:port`."""
        match = re.fullmatch(r"\[(?P<v6>[0-9a-fA-F:.]+)\]:(?P<p6>\d+)|(?P<host>[^:\[\]/\s]+):(?P<port>\d+)", text)
        if match is None:
            raise InvalidEdge(f"{text!r} is not host:port")
        port = int(match["p6"] or match["port"])
        if not 0 < port < 65536:
            raise InvalidEdge(f"{text!r} has no port between 1 and 65535")
        return cls(match["v6"] or match["host"], port)

    @property
    def is_literal(self) -> bool:
        """The host is an IP address, so nobody needs to be asked where it is."""
        try:
            ip_address(self.host)
        except ValueError:
            return False
        return True

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, order=True)
class Locality:
    region: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Edge:
    """One edge process: the same place under two ports."""

    grpc: Address
    http: Address
    locality: Locality = Locality()
    priority: int = 0  # 0 first; a higher number takes what the lower ones cannot
    is_draining: bool = False  # gets no new call; its running streams go on


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSpec:
    """One item of PENSTOCK_ROUTING_EDGES: an edge by address, or a name behind which there is one per DNS record.

    `GRPC_HOST:PORT/HTTP_HOST:PORT[@REGION[/ZONE]][;PRIORITY][;draining]`, or with one name for both ports
    `dns:///NAME:GRPC_PORT/HTTP_PORT...`.
    """

    template: Edge  # as written; hosts may still be names
    is_dns_set: bool  # every record of the name is an edge of its own

    @classmethod
    def parse(cls, text: str) -> Self:
        place, *options = text.strip().split(";")
        addresses, _, locality = place.partition("@")
        is_dns_set = addresses.startswith(DNS_SCHEME)
        grpc, _, http = addresses.removeprefix(DNS_SCHEME).rpartition("/")
        grpc_address = Address.parse(grpc)
        priority, is_draining = _options(options)
        return cls(
            template=Edge(
                grpc=grpc_address,
                http=Address.parse(f"{grpc_address.host}:{http}" if is_dns_set else http),
                locality=Locality(*locality.split("/", 1)) if locality else Locality(),
                priority=priority,
                is_draining=is_draining,
            ),
            is_dns_set=is_dns_set,
        )


def parse_specs(text: str) -> tuple[EdgeSpec, ...]:
    """Items parted by commas or new lines; a line may end in a `#` comment."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    specs = tuple(EdgeSpec.parse(item) for line in lines for item in line.split(",") if item.strip())
    if not specs:
        raise InvalidEdge("no edge is named; write at least one as grpc_host:port/http_host:port")
    return specs


def _options(options: list[str]) -> tuple[int, bool]:
    priority, is_draining = 0, False
    for option in options:
        if option.isdecimal() and int(option) < 128:  # Envoy's bound
            priority = int(option)
        elif option == "draining":
            is_draining = True
        else:
            raise InvalidEdge(f"{option!r} is neither a priority from 0 to 127 nor 'draining'")
    return priority, is_draining
