"""Mutual TLS at the region door of a real Envoy: which peers it admits, and what each of them may call."""

import grpc

from envoy_auth import GOOD
from envoy_proxy import ECHO, EnvoyProxy
from envoy_regions import wait_for_stat
from free_ports import free_port
from mesh_identities import Identities
from penstock.routing.secrets import secret_files

RUN = "/penstock.mesh.v1.RegionService/Run"
FOLLOW = "/penstock.mesh.v1.RegionQuotaService/Follow"
ALLOWED = (("authorization", GOOD), ("x-penstock-regions", "*"))
NO_EDGE, HANDSHAKE_FAILED, FORBIDDEN = "no healthy upstream", "no handshake", "PERMISSION_DENIED"


async def outcome(channel, path):
    """The end of a call that no edge can serve."""
    try:
        await channel.unary_unary(path)(b"", metadata=ALLOWED, timeout=20)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return NO_EDGE if error.details() == NO_EDGE else HANDSHAKE_FAILED
        return error.code().name


async def test_proxies_edges_and_auth_of_the_mesh_are_admitted_and_each_has_calls_of_its_own(tmp_path):
    identities = Identities.create(tmp_path)
    paths = identities.issue("envoy")
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name, text in secret_files(paths.certificate, paths.key, paths.authorities).items():
        (secrets / name).write_text(text)
    door, nowhere = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    # The other region is this one, so that the proxy dials its own door.
    settings = {
        "REGION": "eu",
        "REGION_LISTEN": door,
        "REGIONS": f"us={door}",
        "AUTHS": nowhere,
        "REGION_AUTHS": nowhere,
    }
    front = EnvoyProxy(tmp_path, ENVOY_SECRETS=secrets, AUTH_CHECK_TIMEOUT=0.01, **settings)
    front.write_edges(f"{nowhere}/{nowhere}")
    async with front.control_plane() as plane:
        await plane.wait_for_line('"listening"')
        async with front.envoy():
            found = {}
            for tier in ("envoy", "edge", "auth", "worker", "operator"):
                async with identities.channel(door, "envoy", tier) as channel:
                    found[tier] = [await outcome(channel, path) for path in (f"{ECHO}Unary", RUN, FOLLOW)]
            assert found == {
                "envoy": [NO_EDGE, FORBIDDEN, FORBIDDEN],
                "edge": [FORBIDDEN, NO_EDGE, FORBIDDEN],
                "auth": [FORBIDDEN, FORBIDDEN, NO_EDGE],
                "worker": [HANDSHAKE_FAILED] * 3,
                "operator": [HANDSHAKE_FAILED] * 3,
            }
            async with identities.bad_callers(door, "envoy", "edge") as callers:
                refused = {problem: await outcome(channel, RUN) for problem, channel in callers.items()}
            assert set(refused.values()) == {HANDSHAKE_FAILED}
            await wait_for_stat(front, "cluster.region_us.ssl.handshake", lambda value: value > 0)
