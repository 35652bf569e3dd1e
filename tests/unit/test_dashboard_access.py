"""Which HTTP requests the page of `penstock dashboard` answers."""

import re

import pytest

from penstock.chassis.errors import Overloaded, PermissionDenied
from penstock.chassis.operators.access import OperatorAccess
from penstock.chassis.operators.throttle import FAILURE_BURST
from penstock.cli.dashboard.access import PageAccess
from penstock.cli.dashboard.document import FOLDER, load_document

TOKEN = "secret"
PEER = "ipv4:127.0.0.1:40000"
BEARER = ("authorization", f"Bearer {TOKEN}")


def access(*names, is_unix=False):
    return PageAccess(OperatorAccess(is_unix=is_unix, token=TOKEN), names)


def headers(*pairs, host="127.0.0.1:7090"):
    return [(name.encode(), value.encode()) for name, value in (("host", host), *pairs)]


@pytest.mark.parametrize("host", ["127.0.0.1:7090", "localhost:1234", "LOCALHOST", "[::1]:7090", "127.0.0.1"])
def test_a_loopback_name_is_answered_at_any_forwarded_port(host):
    access().check_host(headers(host=host))


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:7090", "127.0.0.1.evil.example", "localhost.evil.example:7090", "", "10.0.0.7:7090"],
)
def test_another_name_of_this_server_is_refused(host):
    """A page whose name resolves to loopback (DNS rebinding) sends its own name."""
    with pytest.raises(PermissionDenied) as refused:
        access().check_host(headers(host=host))
    assert refused.value.reason == "HOST_DENIED"


def test_the_name_of_a_forwarder_is_answered_with_its_own_origin_alone():
    forwarded = access("mesh.example")
    own = headers(BEARER, ("origin", "https://mesh.example"), host="mesh.example")
    forwarded.check_host(own)
    forwarded.check_data(own, PEER, now=0.0)
    with pytest.raises(PermissionDenied):
        forwarded.check_host(headers(host="evil.example"))
    with pytest.raises(PermissionDenied):
        forwarded.check_data(headers(BEARER, ("origin", "https://evil.example"), host="mesh.example"), PEER, now=0.0)


def test_a_request_without_a_name_or_with_two_names_is_refused():
    for given in ([], headers(("host", "localhost"))):
        with pytest.raises(PermissionDenied):
            access().check_host(given)


def test_the_page_itself_reads_data_with_the_token():
    own = headers(("origin", "http://127.0.0.1:7090"), ("sec-fetch-site", "same-origin"), BEARER)
    access().check_data(own, PEER, now=0.0)
    access().check_data(headers(BEARER), PEER, now=0.0)  # a program


@pytest.mark.parametrize("is_unix", [False, True])
@pytest.mark.parametrize(
    "foreign",
    [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://127.0.0.1:8080"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ],
)
def test_pages_of_other_origins_read_nothing_even_with_the_token(foreign, is_unix):
    with pytest.raises(PermissionDenied) as refused:
        access(is_unix=is_unix).check_data(headers(foreign, BEARER), PEER, now=0.0)
    assert refused.value.reason == "ORIGIN_DENIED"


def test_without_the_token_nothing_is_read_and_guesses_are_throttled():
    guarded = access()
    for _ in range(int(FAILURE_BURST)):
        with pytest.raises(PermissionDenied) as refused:
            guarded.check_data(headers(("authorization", "Bearer guess")), PEER, now=0.0)
        assert refused.value.reason == "ADMIN_ONLY"
    with pytest.raises(Overloaded):
        guarded.check_data(headers(BEARER), PEER, now=0.0)
    guarded.check_data(headers(BEARER), PEER, now=60.0)


def test_the_owner_of_the_unix_socket_needs_no_token():
    access(is_unix=True).check_data(headers(host="localhost:7090"), "unix:", now=0.0)


def test_the_document_is_whole_and_its_policy_admits_its_own_blocks_alone():
    document = load_document()
    html = document.html.decode()
    names = {path.name for path in FOLDER.iterdir() if path.suffix in {".js", ".css"}}
    assert all((FOLDER / name).read_text(encoding="utf-8") in html for name in names)
    assert not re.search(r"""(?:src|href)="(?!data:)""", html)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)(?!\$\{)", html)
    assert document.policy.count("'sha256-") == len(names)
    assert "default-src 'none'" in document.policy
    assert "unsafe" not in document.policy


def test_no_script_of_the_page_makes_markup_or_code_from_text():
    for script in FOLDER.glob("*.js"):
        text = script.read_text(encoding="utf-8")
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "cookie"):
            assert way not in text, (script.name, way)
