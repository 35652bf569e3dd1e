"""A real Envoy with a real endpoint picker in front of fake OpenAI servers."""

import asyncio
import copy
import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import yaml

from envoy_proxy import ENVOY, logged_process
from free_ports import free_port
from openai_server import OpenAIServer
from paths import REPO
from penstock.picker.endpoints.http_get import get

CONFIG = REPO / "deploy" / "endpoint-picker" / "envoy.yaml"
UPSTREAM_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
SUBSET_HEADER = "x-test-subset"
PICKER_SETTINGS = {"SCRAPE_INTERVAL": "0.05", "LOG_LEVEL": "debug"}


def body_modes(request, response):
    """Fields of `processing_mode` for the modes of both bodies."""
    modes = {"request": request, "response": response}
    bodies = {f"{name}_body_mode": mode for name, mode in modes.items()}
    is_duplex = {name: mode == "FULL_DUPLEX_STREAMED" for name, mode in modes.items()}
    return bodies | {f"{name}_trailer_mode": "SEND" if found else "SKIP" for name, found in is_duplex.items()}


class PickerFront:
    """The addresses and processes of one front.

    `modes` replaces fields of `processing_mode`, `filter_fields` those of the filter. `source`: the one by which Envoy
    learns endpoints, header or metadata; both by default. `has_plain` adds a listener without the picker. `tls`: the
    context of TLS to the picker, of Envoy's `UpstreamTlsContext`; plaintext without one.
    """

    def __init__(
        self, folder, servers, *, modes=None, filter_fields=None, source="", has_plain=False, tls=None, settings=None
    ):
        self.folder, self.servers = folder, servers
        self.modes, self.filter_fields, self.source = modes or {}, filter_fields or {}, source
        self.has_plain, self.tls, self.settings = has_plain, tls, settings or {}
        self.further_ports = {}  # of listeners by their modes of both bodies
        self.port, self.picker_port, self.metrics_port, self.plain_port = (free_port() for _ in range(4))

    def envoy_config(self):
        """Return the shipped configuration with the addresses of this front, and a filter that sets subset hints."""
        config = yaml.safe_load(CONFIG.read_text())
        listener = config["static_resources"]["listeners"][0]
        more = [self._plain(listener)] if self.has_plain else []
        more += [self._with_modes(listener, modes) for modes in self.further_ports]
        listener["address"]["socket_address"]["port_value"] = self.port
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        processor = manager["http_filters"][0]["typed_config"]
        processor |= self.filter_fields
        processor["processing_mode"] |= self.modes
        manager["http_filters"].insert(0, _subset_filter())
        config["static_resources"]["listeners"] += more
        picker, servers = config["static_resources"]["clusters"]
        _set_ports(picker, [self.picker_port])
        if self.tls is not None:
            picker["transport_socket"] = {"name": "tls", "typed_config": {"@type": UPSTREAM_TLS, **self.tls}}
        _set_ports(servers, [each.port for each in self.servers])
        policy = servers["load_balancing_policy"]["policies"][0]["typed_extension_config"]["typed_config"]
        sources = policy["override_host_sources"]
        policy["override_host_sources"] = [each for each in sources if not self.source or self.source in each]
        return config

    def _plain(self, listener):
        """Return a listener without the picker, whose requests go to the servers by the fallback policy."""
        plain = copy.deepcopy(listener) | {"name": "plain"}
        plain["address"]["socket_address"]["port_value"] = self.plain_port
        del plain["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"][0]
        return plain

    def _with_modes(self, listener, modes):
        """Return a listener with other modes of bodies."""
        other = copy.deepcopy(listener) | {"name": "-".join(modes)}
        other["address"]["socket_address"]["port_value"] = self.further_ports[modes]
        manager = other["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_filters"][0]["typed_config"]["processing_mode"] |= body_modes(*modes)
        return other

    def picker(self):
        own = {
            "LISTEN": f"127.0.0.1:{self.picker_port}",
            "METRICS_LISTEN": f"127.0.0.1:{self.metrics_port}",
            "ENDPOINTS": ",".join(each.address for each in self.servers),
            **PICKER_SETTINGS,
            **self.settings,
        }
        names = {f"PENSTOCK_PICKER_{name}": str(value) for name, value in own.items()}
        return logged_process(sys.executable, "-m", "penstock.picker", env=names)

    @asynccontextmanager
    async def envoy(self):
        file = self.folder / "picker-envoy.json"
        file.write_text(json.dumps(self.envoy_config()))
        async with logged_process(ENVOY, "-c", file, "--concurrency", "1", "--disable-hot-restart") as envoy:
            await envoy.wait_for_line("starting main dispatch loop")
            yield envoy

    async def metric(self, name):
        """Return the sum of a series of the picker."""
        text = (await get(f"127.0.0.1:{self.metrics_port}", "/metrics")).decode()
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.partition("{")[0].partition(" ")[0] == name]
        return sum(float(value) for _, value in lines)

    async def picker_waits(self, count):
        """Return once so many requests wait in the picker."""
        while await self.metric("penstock_picker_waiting") != count:
            pass

    async def picker_holds(self, count):
        """Return once requests hold so many slots."""
        while await self.metric("penstock_picker_slots_held") != count:
            pass

    async def call(self, body=b'{"model":"small","messages":[]}', *, path="/v1/chat/completions", port=0, **headers):
        """Send a request, a GET without a body; return status, headers and body."""
        reader, writer = await self.open(body, path=path, port=port, **headers)
        status, found = await read_head(reader)
        content = await _content(reader, found)
        writer.close()
        return status, found, content

    async def open(self, body=b"", *, path="/v1/chat/completions", trailers=False, port=0, **headers):
        """Send a request and return its connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.port)
        lines = [f"{'POST' if body else 'GET'} {path} HTTP/1.1", "host: front", "connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if trailers:
            lines += ["transfer-encoding: chunked", "trailer: x-end", "te: trailers"]
            content = b"%x\r\n%s\r\n0\r\nx-end: 1\r\n\r\n" % (len(body), body)
        else:
            lines += [f"content-length: {len(body)}"] if body else []
            content = body
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        return reader, writer


async def read_head(reader):
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    return int(lines[0].split(" ")[1]), dict(line.lower().split(": ", 1) for line in lines[1:] if line)


async def _content(reader, headers):
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    return body


def _set_ports(cluster, ports):
    entries = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}} for port in ports
    ]
    cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": entries}]


def _subset_filter():
    rule = {
        "header": SUBSET_HEADER,
        "on_header_present": {
            "metadata_namespace": "envoy.lb.subset_hint",
            "key": "x-gateway-destination-endpoint-subset",
            "type": "STRING",
        },
        "remove": True,
    }
    kind = "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config"
    return {
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {"@type": kind, "request_rules": [rule]},
    }


@asynccontextmanager
async def running_picker(
    folder, *, servers=3, modes=None, filter_fields=None, source="", has_plain=False, tls=None, listeners=(), **settings
):
    """A front with so many servers, named a, b, c; all are ready. `listeners`: modes of both bodies of further ones."""
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(OpenAIServer(name).serving()) for name in "abc"[:servers]]
        front = PickerFront(
            folder,
            found,
            modes=modes,
            filter_fields=filter_fields,
            source=source,
            has_plain=has_plain,
            tls=tls,
            settings=settings,
        )
        front.further_ports = {each: free_port() for each in listeners}
        front.process = await stack.enter_async_context(front.picker())
        await front.process.wait_for_line('"listening"')
        front.proxy = await stack.enter_async_context(front.envoy())
        yield front
