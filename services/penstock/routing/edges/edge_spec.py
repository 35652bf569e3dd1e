"""Edges: the syntax in which an operator lists them, and their addresses, priorities and localities."""

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self

DNS_SCHEME = "dns:///"


class InvalidEdge(ValueError):
    """The text does not describe an edge that can be dialled."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `host:port` or `[v6]:port`. Raises InvalidEdge."""
        match = re.fullmatch(r"\[(?P<v6>[0-9a-fA-F:.]+)\]:(?P<p6>\d+)|(?P<host>[^:\[\]/\s]+):(?P<port>\d+)", text)
        if match is None:
            raise InvalidEdge(f"{text!r} is not host:port")
        port = int(match["p6"] or match["port"])
        if not 0 < port < 65536:
            raise InvalidEdge(f"{text!r} has no port between 1 and 65535")
        return cls(match["v6"] or match["host"], port)

    @property
    def is_literal(self) -> bool:
        """Whether the host is an IP address, which needs no lookup."""
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
    """One edge process with its two ports."""

    grpc: Address
    http: Address
    locality: Locality = Locality()
    priority: int = 0  # 0 is first; a higher number serves if the lower ones cannot
    is_draining: bool = False  # gets no new calls; its running streams continue


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSpec:
    """One item of PENSTOCK_ROUTING_EDGES: an edge by address, or a name with one edge per DNS record.

    The syntax is `GRPC_HOST:PORT/HTTP_HOST:PORT[@REGION[/ZONE]][;PRIORITY][;draining]`, or
    `dns:///NAME:GRPC_PORT/HTTP_PORT` with the same endings for one name with both ports.
    """

    template: Edge  # as written; hosts may still be names
    is_dns_set: bool  # each record of the name is an edge of its own

    @classmethod
    def parse(cls, text: str) -> Self:
        location, *options = text.strip().split(";")
        addresses, _, locality = location.partition("@")
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
    """Parse items separated by commas or newlines; a line may end in a `#` comment. Raises InvalidEdge."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    specs = tuple(EdgeSpec.parse(item) for line in lines for item in line.split(",") if item.strip())
    if not specs:
        raise InvalidEdge("the list of edges is empty; add at least one as grpc_host:port/http_host:port")
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
