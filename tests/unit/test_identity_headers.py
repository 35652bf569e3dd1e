"""The identity header: auth signs it for a proxy, an edge accepts it for its credential until it expires."""

import base64

import pytest

from penstock.auth.identity.identity_keys import HEADER_TTL_S, ROTATION_S, IdentityKeyRing
from penstock.edge.request.caller import identity_header_of
from penstock.edge.request.identity_headers import MAX_AUTHS, IdentityHeaders
from penstock.mesh.identity_header import MAX_HEADER_CHARS
from penstock.mesh.limits import bounds
from penstock.mesh.v1.admission_pb2 import Credential, Identity, IdentityKeys
from penstock.v1.inference_pb2 import PRIORITY_BATCH

NOW = 1_800_000_000.0  # of the clock of auth
EDGE_NOW = 5_000.0
CREDENTIAL = Credential(bearer="pk_anna", loopback=True, source="192.0.2.1")
IDENTITY = Identity(tenant_id="acme", priority=PRIORITY_BATCH, weight=2.5, cache_salt=b"s" * 16, key_id="k")
REGIONS = [f"r{place:02}".ljust(bounds.REGION_CHARS, "x") for place in range(bounds.ALLOWED_REGIONS)]


def pair(now=NOW):
    """The keys of an auth, and an edge that has received them."""
    ring, edge = IdentityKeyRing(now), IdentityHeaders()
    edge.on_keys("auth", ring.frame(now), EDGE_NOW)
    return ring, edge


def test_an_edge_accepts_what_auth_signed_without_the_secret_salt():
    ring, edge = pair()
    header = ring.sign(IDENTITY, CREDENTIAL, NOW)
    expected = Identity(tenant_id="acme", priority=PRIORITY_BATCH, weight=2.5, key_id="k")
    assert edge.verify(header, CREDENTIAL, EDGE_NOW) == expected
    assert b"s" * 16 not in base64.urlsafe_b64decode(header + "==")
    assert (edge.accepted, edge.rejected) == (1, 0)


@pytest.mark.parametrize("regions", [["eu"], ["eu", "us"], REGIONS])
def test_a_header_has_the_allowed_regions_of_its_tenant(regions):
    ring, edge = pair()
    longest = Identity(tenant_id="t" * 63, key_id=f"oidc/{'t' * 63}/{'s' * 160}", weight=1.0, allowed_regions=regions)
    assert edge.verify(ring.sign(longest, CREDENTIAL, NOW), CREDENTIAL, EDGE_NOW) == longest


def test_a_header_is_worth_nothing_beside_another_credential():
    ring, edge = pair()
    header = ring.sign(IDENTITY, CREDENTIAL, NOW)
    for other in (Credential(bearer="pk_eve", loopback=True), Credential(bearer="pk_anna"), Credential()):
        assert edge.verify(header, other, EDGE_NOW) is None


def test_a_header_expires_by_the_clock_of_auth():
    ring, edge = pair()
    assert HEADER_TTL_S <= 30.0
    header = ring.sign(IDENTITY, CREDENTIAL, NOW + 100.0)
    assert edge.verify(header, CREDENTIAL, EDGE_NOW + 100.0 + HEADER_TTL_S - 0.1)
    assert edge.verify(header, CREDENTIAL, EDGE_NOW + 100.0 + HEADER_TTL_S) is None


def test_a_new_key_takes_over_and_the_former_one_verifies_until_its_last_header_has_expired():
    ring, edge = pair()
    assert not ring.rotate(NOW + ROTATION_S - 1.0)
    former = ring.sign(IDENTITY, CREDENTIAL, NOW + ROTATION_S - 1.0)
    assert ring.rotate(NOW + ROTATION_S)
    assert not ring.rotate(NOW + ROTATION_S + 1.0)
    header = ring.sign(IDENTITY, CREDENTIAL, NOW + ROTATION_S + 1.0)
    edge_now = EDGE_NOW + ROTATION_S + 1.0
    assert edge.verify(header, CREDENTIAL, edge_now) is None  # not received yet
    edge.on_keys("auth", ring.frame(NOW + ROTATION_S + 1.0), edge_now)
    assert edge.verify(header, CREDENTIAL, edge_now)
    assert edge.verify(former, CREDENTIAL, edge_now)
    assert ring.rotate(NOW + ROTATION_S + HEADER_TTL_S)
    assert len(ring.frame(NOW + ROTATION_S + HEADER_TTL_S).keys) == 1
    assert edge.verify(header, CREDENTIAL, edge_now + 2 * ROTATION_S) is None


def test_an_edge_verifies_headers_of_each_auth_process_and_of_no_other():
    ring, edge = pair()
    other = IdentityKeyRing(NOW + 50.0)
    header = other.sign(IDENTITY, CREDENTIAL, NOW + 50.0)
    assert edge.verify(header, CREDENTIAL, EDGE_NOW) is None
    edge.on_keys("auth-2", other.frame(NOW + 50.0), EDGE_NOW)
    assert edge.verify(header, CREDENTIAL, EDGE_NOW)
    assert edge.verify(ring.sign(IDENTITY, CREDENTIAL, NOW), CREDENTIAL, EDGE_NOW)


def test_no_changed_header_is_accepted():
    ring, edge = pair()
    header = ring.sign(IDENTITY, CREDENTIAL, NOW)
    raw = base64.urlsafe_b64decode(header + "=" * (-len(header) % 4))
    changed = [raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :] for at in range(len(raw))]
    cut = [raw[:end] for end in range(len(raw))]
    for each in (*changed, *cut, raw + b"\0", bytes(len(raw))):
        assert edge.verify(base64.urlsafe_b64encode(each).decode().rstrip("="), CREDENTIAL, EDGE_NOW) is None
    for text in (
        "",
        "=",
        "é",
        "a b",
        "x" * MAX_HEADER_CHARS,
        "x" * (MAX_HEADER_CHARS + 1),
        header + header,
        "Bearer x",
    ):
        assert edge.verify(text, CREDENTIAL, EDGE_NOW) is None
    assert edge.accepted == 0


def test_an_edge_without_keys_accepts_no_header():
    ring, edge = IdentityKeyRing(NOW), IdentityHeaders()
    assert edge.verify(ring.sign(IDENTITY, CREDENTIAL, NOW), CREDENTIAL, EDGE_NOW) is None
    edge.on_keys("auth", IdentityKeys(), EDGE_NOW)
    assert edge.verify(ring.sign(IDENTITY, CREDENTIAL, NOW), CREDENTIAL, EDGE_NOW) is None


def test_the_number_of_auth_processes_is_bounded():
    ring, edge = pair()
    for number in range(2 * MAX_AUTHS):
        edge.on_keys(f"auth-{number}", ring.frame(NOW), EDGE_NOW)
    assert len(edge._keys) == MAX_AUTHS


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("x-penstock-identity", "a")], "a"),
        ([("X-Penstock-Identity", "a")], "a"),
        ([("x-penstock-identity", "a"), ("x-penstock-identity", "b")], ""),
        ([("x-penstock-identity", b"a")], ""),
        ([], ""),
    ],
)
def test_two_identity_headers_are_none(headers, expected):
    assert identity_header_of(headers) == expected
