"""Identities in certificates: only the exact form is accepted, and settings must agree with it."""

import pytest

from penstock.certificates.authority import Authority
from penstock.chassis.config import ConfigError, ServiceConfig, load
from penstock.chassis.security.identity import (
    HelloMismatch,
    IdentityInvalid,
    check_hello,
    parse_spiffe_id,
    server_name,
)
from penstock.chassis.security.permissions import PERMISSIONS, is_allowed
from penstock.chassis.security.process import instance_id_of, is_loopback_address
from penstock.v1.stream_pb2 import Hello

VALID = "spiffe://penstock.local/penstock/edge/edge-1"


def test_an_identity_is_read_from_the_uri():
    identity = parse_spiffe_id(VALID)
    assert (identity.trust_domain, identity.tier, identity.instance_id) == ("penstock.local", "edge", "edge-1")
    assert identity.uri == VALID


@pytest.mark.parametrize(
    "uri",
    [
        "",
        VALID + "/",
        VALID + "/x",
        VALID + "\n",
        VALID + "?a",
        VALID + "#a",
        " " + VALID,
        VALID.upper(),
        VALID.replace("spiffe:", "https:"),
        VALID.replace("/penstock/", "/other/"),
        VALID.replace("/edge/", "/root/"),
        VALID.replace("edge-1", "edge_1"),
        VALID.replace("edge-1", "*"),
        VALID.replace("edge-1", ".."),
        VALID.replace("edge-1", "edge-1.2"),
        VALID.replace("edge-1", "edge%2d1"),
        VALID.replace("edge-1", "-edge"),
        VALID.replace("edge-1", "é"),
        VALID.replace("edge-1", "a" * 64),
        VALID.replace("edge-1", ""),
        VALID.replace("penstock.local", ""),
        VALID.replace("penstock.local", "user@penstock.local"),
        VALID.replace("penstock.local", "penstock.local:80"),
        VALID.replace("penstock.local", "Penstock.local"),
        VALID.replace("penstock.local", "penstock..local"),
        VALID.replace("penstock.local", "a" * 256),
    ],
)
def test_any_other_form_is_refused(uri):
    with pytest.raises(IdentityInvalid):
        parse_spiffe_id(uri)


@pytest.mark.parametrize("worker_id", ["a.b/c", "é", "x\0y", "-", "A", "queue.penstock.internal\0", "a" * 64])
def test_an_instance_id_of_a_peer_never_makes_another_name(worker_id):
    name = server_name("worker", worker_id)
    assert name.endswith(".worker.penstock.internal")
    assert name.removesuffix(".worker.penstock.internal") in {"invalid-", "a", "x", "queue"}


def test_the_suffix_of_a_start_is_not_part_of_the_name():
    assert server_name("worker", "worker-1.5f3a") == "worker-1.worker.penstock.internal"


@pytest.mark.parametrize("instance_id", ["edge-1", "edge-1.5f3a"])
def test_a_hello_of_the_instance_passes(instance_id):
    check_hello(Hello(tier="edge", instance_id=instance_id), "edge", "edge-1")


@pytest.mark.parametrize(
    "hello", [{"tier": "queue"}, {"tier": ""}, {"instance_id": "edge-11"}, {"instance_id": "edge-2.edge-1"}]
)
def test_a_hello_of_another_process_does_not_pass(hello):
    with pytest.raises(HelloMismatch):
        check_hello(Hello(**{"tier": "edge", "instance_id": "edge-1", **hello}), "edge", "edge-1")


def test_a_method_without_an_entry_is_allowed_to_no_tier():
    assert not is_allowed("operator", "/penstock.v1.Admin/Explode")
    assert not is_allowed("edge", "/penstock.mesh.v1.QueueService/Dispatch")
    assert is_allowed("edge", "/penstock.mesh.v1.QueueService/Submit")
    assert all(tiers for tiers in PERMISSIONS.values())


@pytest.mark.parametrize(
    ("listen", "is_local"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("127.evil.example:1", False),
        ("example:1", False),
    ],
)
def test_only_addresses_of_this_host_count_as_loopback(listen, is_local):
    assert is_loopback_address(listen) == is_local


def config_of(tmp_path, tier="queue", instance="queue-0", **settings):
    paths = Authority.create().issue_to(tmp_path, "own", tier, instance)
    return ServiceConfig(tls_certificate=paths.certificate, tls_key=paths.key, tls_ca=paths.authorities, **settings)


def test_an_instance_id_is_that_of_the_certificate_with_a_suffix_of_the_start(tmp_path):
    config = config_of(tmp_path)
    first, second = instance_id_of(config, "queue"), instance_id_of(config, "queue")
    assert first.startswith("queue-0.")
    assert first != second


@pytest.mark.parametrize("given", ["queue-0", "queue-0.7"])
def test_an_instance_id_of_the_certificate_may_be_set(tmp_path, given):
    assert instance_id_of(config_of(tmp_path, instance_id=given), "queue") == given


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tier": "edge", "instance": "queue-0"}, "this process is of tier queue"),
        ({"instance_id": "queue-1"}, "PENSTOCK_QUEUE_INSTANCE_ID is queue-1"),
        ({"trust_domain": "other.example"}, "PENSTOCK_TRUST_DOMAIN is other.example"),
    ],
)
def test_settings_that_differ_from_the_certificate_stop_the_start(tmp_path, options, error):
    with pytest.raises(ConfigError, match=error):
        instance_id_of(config_of(tmp_path, **options), "queue")


@pytest.mark.parametrize(
    "settings",
    [
        {"PENSTOCK_TLS_CERTIFICATE": "a"},
        {"PENSTOCK_TLS_CERTIFICATE": "a", "PENSTOCK_TLS_KEY": "b"},
        {"PENSTOCK_TLS_CERTIFICATE": "a", "PENSTOCK_TLS_KEY": "b", "PENSTOCK_TLS_CA": "c", "PENSTOCK_INSECURE": "1"},
    ],
)
def test_incomplete_or_contradictory_settings_stop_the_start(settings):
    with pytest.raises(ConfigError, match="tls_certificate"):
        load(ServiceConfig, "queue", settings)
