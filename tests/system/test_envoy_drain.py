"""The drain of a proxy and its control plane, as Kubernetes does it."""

import asyncio
import json
import signal
from contextlib import asynccontextmanager

from envoy_proxy import ECHO, Backend, EnvoyProxy
from paths import REPO

DRAIN = REPO / "deploy" / "k8s" / "base" / "envoy" / "drain.sh"


@asynccontextmanager
async def up(folder):
    front = EnvoyProxy(folder)
    async with Backend("a").running() as backend:
        front.write_edges(backend.edge)
        async with front.control_plane() as plane:
            await plane.wait_for_line('"listening"')
            async with front.envoy(), front.channel() as channel:
                yield front, backend, plane, channel


async def drain(front, grace_s):
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec("bash", DRAIN, str(front.admin_port), str(grace_s), stdout=pipe)


async def test_a_drain_ends_when_the_last_stream_has_and_cuts_none(tmp_path):
    async with up(tmp_path) as (front, backend, _, channel):
        call = channel.unary_stream(f"{ECHO}Stream")(b"")
        assert await call.read() == b"a first"
        draining = await drain(front, grace_s=60)
        assert await draining.stdout.readline() == b"draining: 1 requests left\n"
        backend.may_continue.set()
        assert await call.read() == b"a second"
        printed, _ = await draining.communicate()
        assert printed.splitlines()[-1] == b"draining: 0 requests left"
        assert draining.returncode == 0


async def test_a_drain_ends_after_its_grace_period(tmp_path):
    async with up(tmp_path) as (front, _, _, channel):
        call = channel.unary_stream(f"{ECHO}Stream")(b"")
        await call.read()
        draining = await drain(front, grace_s=1)
        printed, _ = await draining.communicate()
        assert printed.splitlines() == [b"draining: 1 requests left", b"drain: grace of 1 s is over"]
        assert draining.returncode == 0


async def test_a_control_plane_with_proxies_attached_ends_at_once_with_status_0(tmp_path):
    async with up(tmp_path) as (_, _, plane, channel):
        plane.child.send_signal(signal.SIGTERM)
        assert json.loads(await plane.wait_for_line('"drained"'))["cancelled"] == 0
        assert await plane.child.wait() == 0
        assert await channel.unary_unary(f"{ECHO}Unary")(b"") == b"a"
