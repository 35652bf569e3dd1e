"""A real aggregated discovery server, called as by a proxy, in both variants of xDS."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from envoy_data_plane.envoy.config.core.v3 import Node
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import Secret
from envoy_data_plane.envoy.service.discovery.v3 import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from envoy_data_plane.google.rpc import Status

from penstock.chassis.security.certificate_pair import CertificatePair
from penstock.routing.edges.edge_spec import Address, parse_specs
from penstock.routing.resources.build import ProxyConfig, build_snapshot
from penstock.routing.resources.types import ResourceType
from penstock.routing.service import SERVICE, AggregatedDiscovery, add_discovery_to_server
from penstock.routing.snapshot_cache import SnapshotCache

SECRET, CLUSTER, ENDPOINT, LISTENER, ROUTE = ResourceType
NODE = Node(id="front-1")


def snapshot(*hosts, key=None):
    edges = [spec.template for host in hosts for spec in parse_specs(f"{host}:7001/{host}:7080")]
    certificate = CertificatePair(b"chain", key) if key else None
    return build_snapshot(ProxyConfig(listen=Address("127.0.0.1", 8080)), edges, certificate)


def key_of(packed):
    return Secret.parse(packed.value).tls_certificate.private_key.inline_bytes


@asynccontextmanager
async def control_plane(cache):
    """A channel to a server of this snapshot cache."""
    server = grpc.aio.server()
    add_discovery_to_server(AggregatedDiscovery(cache), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


def sotw(channel):
    return channel.stream_stream(
        f"/{SERVICE}/StreamAggregatedResources", DiscoveryRequest.SerializeToString, DiscoveryResponse.FromString
    )()


def delta(channel):
    return channel.stream_stream(
        f"/{SERVICE}/DeltaAggregatedResources",
        DeltaDiscoveryRequest.SerializeToString,
        DeltaDiscoveryResponse.FromString,
    )()


def hosts(packed):
    groups = ClusterLoadAssignment.parse(packed.value).to_dict().get("endpoints", [])
    endpoints = [endpoint for group in groups for endpoint in group["lbEndpoints"]]
    return [endpoint["endpoint"]["address"]["socketAddress"]["address"] for endpoint in endpoints]


async def test_a_delta_proxy_gets_all_at_first_and_then_only_what_changed():
    cache = SnapshotCache(snapshot("10.0.0.1"))
    async with control_plane(cache) as channel:
        call = delta(channel)
        await call.write(DeltaDiscoveryRequest(node=NODE, type_url=CLUSTER.value))
        clusters = await call.read()
        assert [resource.name for resource in clusters.resources] == ["edge_grpc", "edge_http"]
        assert clusters.resources[0].resource.type_url == CLUSTER.value
        await call.write(DeltaDiscoveryRequest(type_url=CLUSTER.value, response_nonce=clusters.nonce))
        await call.write(DeltaDiscoveryRequest(type_url=ENDPOINT.value, resource_names_subscribe=["edge_grpc"]))
        endpoints = await call.read()
        assert hosts(endpoints.resources[0].resource) == ["10.0.0.1"]
        await call.write(DeltaDiscoveryRequest(type_url=ENDPOINT.value, response_nonce=endpoints.nonce))
        assert cache.publish(snapshot("10.0.0.1", "10.0.0.2"))
        more = await call.read()
        assert (more.type_url, hosts(more.resources[0].resource)) == (ENDPOINT.value, ["10.0.0.1", "10.0.0.2"])
        call.cancel()


async def test_a_state_of_the_world_proxy_gets_everything_of_a_type_each_time():
    cache = SnapshotCache(snapshot("10.0.0.1"))
    async with control_plane(cache) as channel:
        call = sotw(channel)
        names = ["edge_grpc", "edge_http"]
        await call.write(DiscoveryRequest(node=NODE, type_url=ENDPOINT.value, resource_names=names))
        first = await call.read()
        await call.write(
            DiscoveryRequest(
                type_url=ENDPOINT.value,
                resource_names=names,
                version_info=first.version_info,
                response_nonce=first.nonce,
            )
        )
        cache.publish(snapshot("10.0.0.2"))
        second = await call.read()
        assert [hosts(packed) for packed in second.resources] == [["10.0.0.2"], ["10.0.0.2"]]
        assert second.version_info != first.version_info
        call.cancel()


async def test_a_rotated_secret_is_sent_in_both_variants_and_no_other_type_is():
    cache = SnapshotCache(snapshot("10.0.0.1", key=b"one"))
    async with control_plane(cache) as channel:
        by_name, whole = delta(channel), sotw(channel)
        await by_name.write(DeltaDiscoveryRequest(node=NODE, type_url=SECRET.value, resource_names_subscribe=["door"]))
        await whole.write(DiscoveryRequest(node=NODE, type_url=SECRET.value, resource_names=["door"]))
        changes, state = await by_name.read(), await whole.read()
        assert [key_of(each.resource) for each in changes.resources] == [b"one"]
        assert [key_of(each) for each in state.resources] == [b"one"]
        await by_name.write(DeltaDiscoveryRequest(type_url=SECRET.value, response_nonce=changes.nonce))
        await by_name.write(DeltaDiscoveryRequest(type_url=LISTENER.value))
        listeners = await by_name.read()
        await by_name.write(DeltaDiscoveryRequest(type_url=LISTENER.value, response_nonce=listeners.nonce))
        await whole.write(DiscoveryRequest(type_url=SECRET.value, resource_names=["door"], response_nonce=state.nonce))
        assert cache.publish(snapshot("10.0.0.1", key=b"two"))
        changes, state = await by_name.read(), await whole.read()
        assert changes.type_url == SECRET.value
        assert [key_of(each.resource) for each in changes.resources] == [b"two"]
        assert [key_of(each) for each in state.resources] == [b"two"]
        by_name.cancel(), whole.cancel()


async def test_a_nack_is_logged_with_its_reason_and_does_not_end_the_stream(capsys):
    cache = SnapshotCache(snapshot("10.0.0.1"))
    async with control_plane(cache) as channel:
        call = delta(channel)
        await call.write(DeltaDiscoveryRequest(node=NODE, type_url=LISTENER.value))
        answer = await call.read()
        await call.write(
            DeltaDiscoveryRequest(
                type_url=LISTENER.value, response_nonce=answer.nonce, error_detail=Status(message="port taken")
            )
        )
        await call.write(DeltaDiscoveryRequest(type_url=CLUSTER.value))
        assert (await call.read()).type_url == CLUSTER.value
        call.cancel()
    logged = capsys.readouterr().out
    assert "xds_nack" in logged
    assert "port taken" in logged
    assert "front-1" in logged


async def test_a_type_we_do_not_serve_does_not_end_the_stream():
    async with control_plane(SnapshotCache(snapshot("10.0.0.1"))) as channel:
        call = delta(channel)
        await call.write(DeltaDiscoveryRequest(node=NODE, type_url="type.googleapis.com/of.tomorrow"))
        await call.write(DeltaDiscoveryRequest(type_url=ROUTE.value, resource_names_subscribe=["edges"]))
        assert (await call.read()).type_url == ROUTE.value
        call.cancel()


async def test_a_reconnecting_proxy_with_current_versions_is_sent_nothing_until_a_change():
    cache = SnapshotCache(snapshot("10.0.0.1"))
    known = {name: resource.version for name, resource in cache.snapshot.by_type[ENDPOINT].items()}
    async with control_plane(cache) as channel:
        call = delta(channel)
        await call.write(
            DeltaDiscoveryRequest(
                node=NODE,
                type_url=ENDPOINT.value,
                resource_names_subscribe=sorted(known),
                initial_resource_versions=known,
            )
        )
        await call.write(DeltaDiscoveryRequest(type_url=ROUTE.value, resource_names_subscribe=["edges"]))
        assert (await call.read()).type_url == ROUTE.value  # and no endpoints before it
        call.cancel()


async def test_closing_the_snapshot_cache_ends_every_stream_with_status_ok():
    cache = SnapshotCache(snapshot("10.0.0.1"))
    async with control_plane(cache) as channel:
        calls = [delta(channel), sotw(channel)]
        for call in calls:
            await call.initial_metadata()
        assert repr(cache).endswith("2 streams>")
        cache.close()
        assert [await call.code() for call in calls] == [grpc.StatusCode.OK] * 2
        assert repr(cache).endswith("0 streams>")


async def test_a_disconnected_proxy_leaves_no_stream():
    cache = SnapshotCache(snapshot("10.0.0.1"))
    left = asyncio.Event()

    class ObservedWatchers(set):
        def discard(self, watcher):
            super().discard(watcher)
            left.set()

    cache.watchers = ObservedWatchers()
    async with control_plane(cache) as channel:
        call = delta(channel)
        await call.initial_metadata()
        assert len(cache.watchers) == 1
        call.cancel()
        await left.wait()
        assert len(cache.watchers) == 0


def test_an_equal_snapshot_notifies_no_watcher():
    cache = SnapshotCache(snapshot("10.0.0.1"))
    with cache.watch() as watcher:
        assert not cache.publish(snapshot("10.0.0.1"))
        assert not watcher.is_set()


@pytest.mark.parametrize("dialect", [sotw, delta])
async def test_a_half_closed_stream_is_ended(dialect):
    async with control_plane(SnapshotCache(snapshot("10.0.0.1"))) as channel:
        call = dialect(channel)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
