"""Statistics of the regions from the Prometheus endpoint of proxies: healthy hosts and open calls by cluster."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import structlog

from penstock.chassis.channels import resolve

TIMEOUT_S = 2.0
MAX_RESPONSE_BYTES = 1 << 20
_FIGURES = r"^cluster\.(edge_grpc|edge_http|region_[^.]+)\.(membership_healthy|upstream_rq_active)$"
_PATH = f"/stats/prometheus?filter={quote(_FIGURES)}"
_LINE = re.compile(r'envoy_cluster_(\w+)\{envoy_cluster_name="([^"]+)"\} (\d+)')

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ProxyStats:
    """Figures of one proxy by cluster."""

    healthy_hosts: dict[str, int] = field(default_factory=dict)
    open_calls: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "ProxyStats":
        """Parse the Prometheus text of Envoy; lines of other figures are ignored."""
        stats = cls()
        for figure, cluster, value in _LINE.findall(text):
            if figure == "membership_healthy":
                stats.healthy_hosts[cluster] = int(value)
            elif figure == "upstream_rq_active":
                stats.open_calls[cluster] = int(value)
        return stats


async def read_proxies(targets: Sequence[str]) -> list[ProxyStats]:
    """Return the figures of the proxies behind `targets` (host:port or dns:///name:port) that answer in time."""
    addresses = sorted({each for found in await asyncio.gather(*map(_resolved, targets)) for each in found})
    read = await asyncio.gather(*map(_read_proxy, addresses))
    return [each for each in read if each is not None]


async def _resolved(target: str) -> Iterable[str]:
    try:
        return await resolve(target)
    except OSError as error:
        log.warning("proxy_name_unresolved", target=target, error=str(error))
        return ()


async def _read_proxy(address: str) -> ProxyStats | None:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return ProxyStats.parse(await _get(address))
    except (OSError, EOFError, ValueError, TimeoutError) as error:
        log.warning("proxy_stats_failed", address=address, error=str(error) or type(error).__name__)
        return None


async def _get(address: str) -> str:
    """Return the body of the response, chunk sizes included. Raises OSError, EOFError or ValueError."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=MAX_RESPONSE_BYTES)
    try:
        writer.write(f"GET {_PATH} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise ValueError(f"it answers {head.splitlines()[0].decode(errors='replace')}")
        return (await reader.read(MAX_RESPONSE_BYTES)).decode(errors="replace")
    finally:
        writer.close()
