"""Scrapes of endpoints over HTTP: what each answer of a server means for its state."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from free_ports import free_port
from openai_server import METRICS, OpenAIServer
from penstock.picker.endpoints.discovery import EndpointDiscovery
from penstock.picker.endpoints.endpoint import EndpointLimits, EndpointState
from penstock.picker.endpoints.fleet import EndpointFleet
from penstock.picker.endpoints.http_get import ResponseInvalid, get
from penstock.picker.endpoints.scraper import EndpointScraper

TEXT = METRICS.format(running=1, waiting=0, kv_usage=0.5)


def scraper_of(*addresses, timeout_s=5.0):
    fleet = EndpointFleet(EndpointLimits())
    discovery = EndpointDiscovery(",".join(addresses))
    options = {"path": "/metrics", "interval_s": 0.01, "timeout_s": timeout_s}
    return fleet, EndpointScraper(fleet, discovery, asyncio.get_running_loop().time, lambda: None, **options)


@asynccontextmanager
async def raw_server(*pieces):
    """A server that sends `pieces` to each request and closes the connection; without any, it never answers."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        if not pieces:
            await reader.read()
        for piece in pieces:
            writer.write(piece)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_a_server_with_metrics_is_ready_and_one_without_is_degraded():
    async with OpenAIServer("a").serving() as with_metrics, OpenAIServer("b").serving() as without:
        without.has_metrics = False
        refusing = f"127.0.0.1:{free_port()}"
        fleet, scraper = scraper_of(with_metrics.address, without.address, refusing)
        await scraper.discover()
        await scraper.scrape_all()
        states = {each.address: each.state for each in fleet}
        assert states == {
            with_metrics.address: EndpointState.READY,
            without.address: EndpointState.DEGRADED,
            refusing: EndpointState.DOWN,
        }
        assert fleet.endpoints[with_metrics.address].load.kv_tokens == 160_000
        assert fleet.models == {"small"}
        assert scraper.failures == 2


async def test_a_server_that_does_not_answer_in_time_is_pending():
    async with raw_server() as address:
        fleet, scraper = scraper_of(address, timeout_s=0.05)
        await scraper.discover()
        await scraper.scrape_all()
        assert fleet.endpoints[address].state is EndpointState.PENDING


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(TEXT), TEXT.encode()],
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x;x=1\r\n" % len(TEXT),
            TEXT.encode(),
            b"\r\n0\r\n\r\n",
        ],
        [b"HTTP/1.0 200 OK\r\n\r\n", TEXT.encode()],
    ],
)
async def test_a_body_is_read_by_its_length_in_chunks_or_to_the_end(pieces):
    async with raw_server(*pieces) as address:
        assert await get(address, "/metrics") == TEXT.encode()


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 10 + b"".join(b"x%d: y\r\n" % each for each in range(200)) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
    ],
)
async def test_a_response_that_is_no_document_is_refused(response):
    async with raw_server(response) as address:
        with pytest.raises(ResponseInvalid):
            await get(address, "/metrics")


async def test_a_response_that_is_cut_is_an_error_of_the_connection():
    async with raw_server(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc") as address:
        with pytest.raises(EOFError):
            await get(address, "/metrics")
