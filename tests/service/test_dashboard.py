"""The page of `penstock dashboard` over HTTP, before a mesh of real shards and a real scheduler."""

import asyncio
import os
import re
import stat
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from busy_mesh import busy_mesh
from operators import admin_socket
from penstock.chassis.config import ConfigError
from penstock.chassis.operators.access import OperatorAccess
from penstock.cli.dashboard.access import PageAccess
from penstock.cli.dashboard.app import DashboardApp
from penstock.cli.dashboard.document import load_document
from penstock.cli.dashboard.frames import FrameSource
from penstock.cli.dashboard.server import bind_page, serving_page
from penstock.cli.top.poll import open_poller
from queue_streams import TIMEOUT_S

TOKEN = "secret"
BEARER = {"authorization": f"Bearer {TOKEN}"}


class CountingPoller:
    """A poller that counts its polls."""

    def __init__(self, poller):
        self._poller = poller
        self.polls = 0

    async def poll(self):
        self.polls += 1
        return await self._poller.poll()


@asynccontextmanager
async def dashboard_of(addresses, listen="127.0.0.1:0", *, report=lambda *_: None, interval=60.0):
    """Yield an HTTP client of the page, and the poller."""
    is_unix = listen.startswith("unix:")
    access = PageAccess(OperatorAccess(is_unix=is_unix, token="" if is_unix else TOKEN))
    async with open_poller({}, addresses) as poller:
        counting = CountingPoller(poller)
        app = DashboardApp(load_document(), FrameSource(counting, await poller.poll_first(), interval), access, report)
        async with serving_page(listen, app) as address:
            transport = httpx.AsyncHTTPTransport(uds=listen.removeprefix("unix:")) if is_unix else None
            base = "http://localhost" if is_unix else f"http://{address}"
            async with httpx.AsyncClient(base_url=base, transport=transport, trust_env=False) as client:
                yield client, counting


async def test_a_viewer_reads_the_frame_of_all_processes_with_the_token():
    async with busy_mesh() as (addresses, _, _), dashboard_of(addresses) as (client, _):
        frame = (await client.get("/frame", headers=BEARER)).json()
        assert {row["tier"] for row in frame["tiers"]} == {"queue", "scheduler"}
        assert [(row["tenant_id"], row["waiting"], row["running"]) for row in frame["tenants"]] == [("acme", 1, 2)]
        assert [row["batch_fill"] for row in frame["workers"]] == [1.0]
        assert frame["interval_s"] == 60.0


async def test_many_viewers_cost_the_mesh_one_poll_per_interval():
    async with busy_mesh() as (addresses, _, _), dashboard_of(addresses) as (client, poller):
        assert poller.polls == 0
        responses = await asyncio.gather(*(client.get("/frame", headers=BEARER) for _ in range(8)))
        assert {response.status_code for response in responses} == {200}
        assert poller.polls == 1


async def test_requests_that_are_not_of_an_operators_page_are_refused():
    async with busy_mesh() as (addresses, _, _), dashboard_of(addresses) as (client, poller):
        cases = [
            ("/frame", {}, 403, "ADMIN_ONLY"),
            ("/frame", {**BEARER, "host": "evil.example"}, 403, "HOST_DENIED"),
            ("/", {"host": "evil.example"}, 403, "HOST_DENIED"),
            ("/frame", {**BEARER, "origin": "http://evil.example"}, 403, "ORIGIN_DENIED"),
            ("/other", BEARER, 404, "PATH_UNKNOWN"),
        ]
        for path, headers, status, reason in cases:
            response = await client.get(path, headers=headers)
            assert (response.status_code, response.json()["error"]["reason"]) == (status, reason)
            assert "access-control-allow-origin" not in response.headers
        posted = await client.post("/frame", headers=BEARER)
        assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")
        assert poller.polls == 0


async def test_guesses_of_the_token_are_throttled_and_reported():
    reports = []

    def report(peer, error, count):
        reports.append((peer.rpartition(":")[0], error.reason, count))

    async with busy_mesh() as (addresses, _, _), dashboard_of(addresses, report=report) as (client, _):
        guess = {"authorization": "Bearer guess"}
        responses = [await client.get("/frame", headers=guess) for _ in range(12)]
        assert responses[0].status_code == 403
        assert responses[-1].status_code == 429
        assert int(responses[-1].headers["retry-after"]) >= 1
        assert reports[0] == ("ipv4:127.0.0.1", "ADMIN_ONLY", 1)
        assert len(reports) < len(responses)


async def test_the_document_carries_no_secret_and_forbids_other_sources():
    async with busy_mesh() as (addresses, _, _), dashboard_of(addresses) as (client, _):
        page = await client.get("/")
        assert TOKEN not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["x-frame-options"] == "DENY"
        assert "set-cookie" not in page.headers
        head = await client.head("/")
        assert (head.status_code, head.content) == (200, b"")


def mode_of(listen):
    return stat.S_IMODE(Path(listen.removeprefix("unix:")).stat().st_mode)


async def test_a_unix_socket_serves_its_owner_without_a_token():
    with admin_socket() as listen:
        async with busy_mesh() as (addresses, _, _), dashboard_of(addresses, listen) as (client, _):
            assert mode_of(listen) == 0o600
            assert (await client.get("/frame")).status_code == 200
            refused = await client.get("/frame", headers={"host": "evil.example"})
            assert refused.status_code == 403
        with pytest.raises(FileNotFoundError):
            mode_of(listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "10.0.0.1:7090", ":7090", "7090", "127.0.0.1:web", "127.0.0.1:99999"])
def test_the_page_is_not_served_off_loopback(listen):
    with pytest.raises(ConfigError):
        bind_page(listen)


@pytest.mark.parametrize("known", ["", "of-the-operators"])
async def test_the_command_prints_the_address_and_no_token_that_the_environment_has(known):
    environment = {name: value for name, value in os.environ.items() if name != "PENSTOCK_ADMIN_TOKEN"}
    if known:
        environment["PENSTOCK_ADMIN_TOKEN"] = known
    async with busy_mesh() as (addresses, _, _), asyncio.timeout(TIMEOUT_S):
        arguments = ["dashboard", "--listen", "127.0.0.1:0", "--target", addresses[0]]
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock.cli", *arguments), stdout=asyncio.subprocess.PIPE, env=environment
        )
        line = (await server.stdout.readline()).decode()
        address, made = re.search(r"(http://127\.0\.0\.1:\d+/)(?:#token=(\S+))?", line).groups()
        assert bool(made) != bool(known)
        assert not known or known not in line
        async with httpx.AsyncClient(trust_env=False) as client:
            response = await client.get(f"{address}frame", headers={"authorization": f"Bearer {made or known}"})
        assert response.status_code == 200
        server.terminate()
        await server.wait()
