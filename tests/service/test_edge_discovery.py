"""Finding edges by name, with a resolver that says what the test tells it to."""

import pytest

from penstock.routing.edges.discovery import EdgeDiscovery
from penstock.routing.edges.edge_spec import InvalidEdge


class Resolver:
    def __init__(self, **records):
        self.records = records
        self.asked = []

    async def __call__(self, target):
        host, _, port = target.removeprefix("dns:///").partition(":")
        self.asked.append(host)
        if host not in self.records:
            raise OSError("no answer")
        return [f"{address}:{port}" for address in self.records[host]]


async def look(directory):
    return [(str(edge.grpc), str(edge.http)) for edge in await directory.look()]


async def test_addresses_are_taken_as_they_are():
    resolver = Resolver()
    directory = EdgeDiscovery("10.0.0.1:7001/10.0.0.1:7080,[::1]:7001/[::1]:7080", resolver)
    assert await look(directory) == [("10.0.0.1:7001", "10.0.0.1:7080"), ("[::1]:7001", "[::1]:7080")]
    assert resolver.asked == []


async def test_every_record_of_a_dns_name_is_an_edge_on_both_ports():
    directory = EdgeDiscovery("dns:///edge:7001/7080", Resolver(edge=["10.0.0.2", "10.0.0.1"]))
    assert await look(directory) == [("10.0.0.1:7001", "10.0.0.1:7080"), ("10.0.0.2:7001", "10.0.0.2:7080")]


async def test_a_plain_name_is_one_edge():
    directory = EdgeDiscovery("grpc:7001/http:7080", Resolver(grpc=["10.0.0.2", "10.0.0.1"], http=["10.0.0.9"]))
    assert await look(directory) == [("10.0.0.1:7001", "10.0.0.9:7080")]


async def test_a_new_record_is_a_new_edge_and_a_lost_one_is_no_edge():
    resolver = Resolver(edge=["10.0.0.1"])
    directory = EdgeDiscovery("dns:///edge:7001/7080", resolver)
    assert len(await look(directory)) == 1
    resolver.records["edge"] = ["10.0.0.2", "10.0.0.3"]
    assert [grpc for grpc, _ in await look(directory)] == ["10.0.0.2:7001", "10.0.0.3:7001"]


async def test_a_name_that_stops_answering_keeps_its_edges():
    resolver = Resolver(edge=["10.0.0.1"])
    directory = EdgeDiscovery("dns:///edge:7001/7080", resolver)
    before = await look(directory)
    resolver.records.clear()
    assert await look(directory) == before


async def test_a_name_that_never_answered_has_no_edge():
    assert await look(EdgeDiscovery("dns:///edge:7001/7080", Resolver())) == []


async def test_an_address_named_twice_is_one_edge():
    directory = EdgeDiscovery("10.0.0.1:7001/10.0.0.1:7080,dns:///edge:7001/7080", Resolver(edge=["10.0.0.1"]))
    assert await look(directory) == [("10.0.0.1:7001", "10.0.0.1:7080")]


async def test_a_file_is_read_anew_at_each_look(tmp_path):
    listed = tmp_path / "edges"
    listed.write_text("10.0.0.1:1/10.0.0.1:2\n")
    directory = EdgeDiscovery(f"file://{listed}", Resolver())
    assert await look(directory) == [("10.0.0.1:1", "10.0.0.1:2")]
    listed.write_text("10.0.0.1:1/10.0.0.1:2\n10.0.0.2:1/10.0.0.2:2\n")
    assert len(await look(directory)) == 2
    listed.write_text("nonsense")
    with pytest.raises(InvalidEdge):
        await look(directory)
