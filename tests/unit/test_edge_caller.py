"""The caller's credential: loopback and bearer token."""

import pytest

from penstock.auth.ext_authz.caller import caller_of
from penstock.chassis import addresses
from penstock.chassis.addresses import is_loopback, source_of
from penstock.edge.request.caller import credential_of

LOOPBACK_PEER = "ipv4:127.0.0.1:5000"
REMOTE_PEER = "ipv4:203.0.113.9:5000"


@pytest.mark.parametrize(
    "peer",
    [
        LOOPBACK_PEER,
        "ipv6:[::1]:5000",
        "ipv6:%5B::1%5D:5000",
        "unix:/tmp/s",
        "127.0.0.1",
        "127.1.2.3:80",
        "::1",
        "[::1]:9",
        "::ffff:127.0.0.1",
    ],
)
def test_loopback_peers_are_recognized(peer):
    assert is_loopback(peer)


@pytest.mark.parametrize(
    "peer", [REMOTE_PEER, "", "unknown", "127.0.0.1.evil.example", "ipv6:[fe80::1]:5", "0.0.0.0", "localhost"]
)
def test_other_peers_are_not_loopback(peer):
    assert not is_loopback(peer)


@pytest.mark.parametrize(
    ("peer", "headers", "expected"),
    [
        (LOOPBACK_PEER, {}, True),
        (REMOTE_PEER, {}, False),
        (LOOPBACK_PEER, {"x-forwarded-for": "127.0.0.1", "x-envoy-internal": "true"}, True),
        (
            LOOPBACK_PEER,
            {"x-forwarded-for": "127.0.0.1, 203.0.113.9"},
            False,
        ),  # its own false hop, then the proxy's true one
        (LOOPBACK_PEER, {"x-forwarded-for": "203.0.113.9, 127.0.0.1"}, False),
        (LOOPBACK_PEER, {"x-forwarded-for": ""}, False),
        (LOOPBACK_PEER, {"x-forwarded-for": "localhost"}, False),
        (LOOPBACK_PEER, {"x-envoy-expected-rq-timeout-ms": "15000"}, False),  # a proxy that does not name its client
        (LOOPBACK_PEER, {"forwarded": "for=127.0.0.1"}, False),
        (LOOPBACK_PEER, {"via": "1.1 proxy"}, False),
        (LOOPBACK_PEER, {"X-Real-IP": "127.0.0.1"}, False),
        (REMOTE_PEER, {"x-forwarded-for": "127.0.0.1"}, False),
    ],
)
def test_loopback_is_judged_by_connection_and_hops_together(peer, headers, expected):
    assert credential_of(headers.items(), peer).loopback is expected


def test_a_hop_list_cut_into_two_headers_is_read_as_one():
    headers = [("x-forwarded-for", "203.0.113.9"), ("x-forwarded-for", "127.0.0.1")]
    assert not credential_of(headers, LOOPBACK_PEER).loopback


@pytest.mark.parametrize(
    ("header", "bearer"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", ""),
        ("abc", ""),
        ("", ""),
        ("Bearer " + "x" * 5000, "x" * 4096),
    ],
)
def test_the_bearer_token_is_what_follows_the_scheme(header, bearer):
    assert credential_of([("authorization", header)], LOOPBACK_PEER).bearer == bearer


@pytest.mark.parametrize(
    ("headers", "bearer"),
    [
        ({"x-api-key": " abc "}, "abc"),
        ({"x-api-key": "abc", "authorization": "Basic xyz"}, "abc"),
        ({"x-api-key": "abc", "authorization": "Bearer "}, "abc"),
        ({"x-api-key": "abc", "authorization": "Bearer xyz"}, "xyz"),
        ({"x-api-key": "x" * 5000}, "x" * 4096),
    ],
)
def test_without_a_bearer_token_the_api_key_is_the_credential_at_edge_and_proxy(headers, bearer):
    assert credential_of(headers.items(), LOOPBACK_PEER).bearer == bearer
    assert caller_of(headers, "127.0.0.1", trusted_hops=0).bearer == bearer


def test_binary_metadata_is_passed_over():
    assert credential_of([("authorization", b"Bearer abc")], LOOPBACK_PEER).bearer == ""


def test_a_hop_with_an_address_of_this_host_counts_as_loopback(monkeypatch):
    monkeypatch.setattr(addresses, "own_addresses", lambda: frozenset({"192.0.2.7"}))
    assert credential_of([("x-forwarded-for", "192.0.2.7")], LOOPBACK_PEER).loopback
    assert not credential_of([("x-forwarded-for", "192.0.2.7")], REMOTE_PEER).loopback
    assert not credential_of([("x-forwarded-for", "192.0.2.8")], LOOPBACK_PEER).loopback


def test_the_addresses_of_this_host_are_those_of_its_interfaces():
    assert "127.0.0.1" in addresses.own_addresses()


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        (REMOTE_PEER, "203.0.113.9"),
        ("203.0.113.9", "203.0.113.9"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:5000", "2001:db8:1:2::"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", "fe80::"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("unix:/tmp/s", ""),
        ("unknown", ""),
    ],
)
def test_failures_are_counted_by_address_or_by_network_of_ipv6(peer, source):
    assert source_of(peer) == source


@pytest.mark.parametrize(
    ("peer", "via_proxy", "source"),
    [
        (REMOTE_PEER, False, "203.0.113.9"),  # its own false hops are ignored
        (REMOTE_PEER, True, "192.0.2.1"),
        (LOOPBACK_PEER, False, "192.0.2.1"),
    ],
)
def test_the_source_is_the_entry_of_a_proxy_that_is_trusted(peer, via_proxy, source):
    headers = [("x-forwarded-for", "198.51.100.1, 192.0.2.1")]
    assert credential_of(headers, peer, via_proxy=via_proxy).source == source
    assert credential_of([], peer, via_proxy=via_proxy).source == peer.removeprefix("ipv4:").removesuffix(":5000")
