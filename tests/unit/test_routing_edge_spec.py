import pytest

from penstock.routing.edges.edge_spec import Address, Edge, EdgeSpec, InvalidEdge, Locality, parse_specs


def test_an_edge_is_two_addresses():
    spec = EdgeSpec.parse("10.0.0.1:7001/10.0.0.1:7080")
    assert spec == EdgeSpec(
        template=Edge(grpc=Address("10.0.0.1", 7001), http=Address("10.0.0.1", 7080)),
        is_dns_set=False,
    )


def test_an_edge_may_have_a_place_a_priority_and_be_draining():
    edge = EdgeSpec.parse("a:1/b:2@eu-west/eu-west-1b;1;draining").template
    assert edge.locality == Locality("eu-west", "eu-west-1b")
    assert (edge.priority, edge.is_draining) == (1, True)


def test_a_region_needs_no_zone():
    assert EdgeSpec.parse("a:1/b:2@eu").template.locality == Locality("eu", "")


def test_a_dns_name_resolves_to_many_edges_on_two_ports():
    spec = EdgeSpec.parse("dns:///edge.penstock:7001/7080@eu")
    assert spec.is_dns_set
    assert (spec.template.grpc, spec.template.http) == (Address("edge.penstock", 7001), Address("edge.penstock", 7080))


def test_ipv6_hosts_are_bracketed():
    spec = EdgeSpec.parse("[::1]:7001/[::1]:7080")
    assert spec.template.grpc == Address("::1", 7001)
    assert str(spec.template.grpc) == "[::1]:7001"
    assert spec.template.grpc.is_literal


def test_many_edges_are_separated_by_commas_or_lines_with_comments():
    specs = parse_specs("a:1/a:2, b:1/b:2\n# the spare\nc:1/c:2;1  # far away\n\n")
    assert [spec.template.grpc.host for spec in specs] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a:1",
        "a:1/b",
        "a/b:2",
        "a:1/b:0",
        "a:1/b:65536",
        "a:1/b:2;first",
        "a:1/b:2;128",
        "a:1/b:2;-1",
        "dns:///a:1",
        "dns:///a:1/b:2",
        "http://a:1/b:2",
    ],
)
def test_an_invalid_edge_is_rejected(text):
    with pytest.raises(InvalidEdge):
        parse_specs(text)
