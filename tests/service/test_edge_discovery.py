"""Discovery of edges by name, with a resolver whose records the test sets."""

import pytest

from penstock.routing.edges.discovery import EdgeDiscovery
from penstock.routing.edges.edge_spec import InvalidEdge


class Resolver:
    def __init__(self, **records):
        self.records = records
        self.lookups = []

    async def __call__(self, target):
        host, _, port = target.removeprefix("dns:///").partition(":")
        self.lookups.append(host)
        if host not in self.records:
            raise OSError("no answer")
        return [f"{address}:{port}" for address in self.records[host]]


async def poll(discovery):
    return [(str(edge.grpc), str(edge.http)) for edge in await discovery.poll()]


async def test_addresses_are_used_without_a_lookup():
    resolver = Resolver()
    discovery = EdgeDiscovery("10.0.0.1:7001/10.0.0.1:7080,[::1]:7001/[::1]:7080", resolver)
    assert await poll(discovery) == [("10.0.0.1:7001", "10.0.0.1:7080"), ("[::1]:7001", "[::1]:7080")]
    assert resolver.lookups == []


async def test_every_record_of_a_dns_name_is_an_edge_on_both_ports():
    discovery = EdgeDiscovery("dns:///edge:7001/7080", Resolver(edge=["10.0.0.2", "10.0.0.1"]))
    assert await poll(discovery) == [("10.0.0.1:7001", "10.0.0.1:7080"), ("10.0.0.2:7001", "10.0.0.2:7080")]


async def test_a_plain_name_is_one_edge():
    discovery = EdgeDiscovery("grpc:7001/http:7080", Resolver(grpc=["10.0.0.2", "10.0.0.1"], http=["10.0.0.9"]))
    assert await poll(discovery) == [("10.0.0.1:7001", "10.0.0.9:7080")]


async def test_a_new_record_is_a_new_edge_and_a_lost_one_is_no_edge():
    resolver = Resolver(edge=["10.0.0.1"])
    discovery = EdgeDiscovery("dns:///edge:7001/7080", resolver)
    assert len(await poll(discovery)) == 1
    resolver.records["edge"] = ["10.0.0.2", "10.0.0.3"]
    assert [grpc for grpc, _ in await poll(discovery)] == ["10.0.0.2:7001", "10.0.0.3:7001"]


async def test_a_name_that_no_longer_resolves_keeps_its_edges():
    resolver = Resolver(edge=["10.0.0.1"])
    discovery = EdgeDiscovery("dns:///edge:7001/7080", resolver)
    before = await poll(discovery)
    resolver.records.clear()
    assert await poll(discovery) == before


async def test_a_name_that_never_resolved_has_no_edge():
    assert await poll(EdgeDiscovery("dns:///edge:7001/7080", Resolver())) == []


async def test_an_address_named_twice_is_one_edge():
    discovery = EdgeDiscovery("10.0.0.1:7001/10.0.0.1:7080,dns:///edge:7001/7080", Resolver(edge=["10.0.0.1"]))
    assert await poll(discovery) == [("10.0.0.1:7001", "10.0.0.1:7080")]


async def test_a_file_is_read_again_at_each_poll(tmp_path):
    listed = tmp_path / "edges"
    listed.write_text("10.0.0.1:1/10.0.0.1:2\n")
    discovery = EdgeDiscovery(f"file://{listed}", Resolver())
    assert await poll(discovery) == [("10.0.0.1:1", "10.0.0.1:2")]
    listed.write_text("10.0.0.1:1/10.0.0.1:2\n10.0.0.2:1/10.0.0.2:2\n")
    assert len(await poll(discovery)) == 2
    listed.write_text("nonsense")
    with pytest.raises(InvalidEdge):
        await poll(discovery)
