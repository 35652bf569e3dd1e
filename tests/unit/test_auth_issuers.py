"""Issuers of JWTs: their file, their keys, and the key ids of their subjects."""

import json

import pytest

from penstock.auth.identity.subject import key_id_of_subject, key_of_subject
from penstock.auth.oidc.issuer import Issuer, read_issuers
from penstock.auth.oidc.key_set import KeySet, KeySetInvalid
from penstock.chassis.config import ConfigError
from tokens import AUDIENCE, ISSUER, NOW, Provider, encoded, jwk, signed

ISSUER_OF_FILE = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": "https://login.example/keys", "tenant": "acme"}


@pytest.mark.parametrize(
    "key",
    [
        {"kty": "oct", "k": encoded(b"s" * 32), "kid": "key-1", "alg": "HS256"},
        jwk(private=True),
        jwk(use="enc"),
        jwk(bits=1024, number=7),
        jwk(alg="RS512"),
        jwk(key_ops=["sign"]),
        jwk(key_ops="verify"),
        jwk(n="AQAB"),
        jwk("ES256", crv="P-384"),
        jwk("ES256", x="AAAA"),
        {"kty": "RSA", "kid": "key-1"},
        {"kid": "key-1"},
        {"kty": ["RSA"]},
    ],
    ids=lambda each: json.dumps({name: value for name, value in each.items() if len(str(value)) < 20}),
)
def test_a_key_that_is_private_symmetric_weak_or_for_another_use_is_not_used(key):
    provider = Provider()
    with pytest.raises(KeySetInvalid):
        provider.load(key)
    assert provider.verify(signed())  # the former keys stay in use


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"null", b'{"keys": 1}', b'{"keys": []}', b"\xff", b"[" * 100_000, b"x" * 300_000]
)
def test_a_document_that_is_no_key_set_changes_nothing(document):
    key_set = KeySet(Provider().issuer, 10.0, 10.0)
    with pytest.raises(KeySetInvalid):
        key_set.load(document, NOW)
    assert key_set.is_stale(NOW)


# Settings and names.


def issuers(tmp_path, *entries):
    path = tmp_path / "issuers.json"
    path.write_text(json.dumps(list(entries)))
    return read_issuers(str(path))


def test_issuers_are_read_from_a_file(tmp_path):
    [first, second] = issuers(
        tmp_path,
        ISSUER_OF_FILE,
        ISSUER_OF_FILE | {"issuer": "b", "audience": ["x", "y"], "jwks": "/k.json", "algorithms": ["ES256", "EdDSA"]},
    )
    assert first == Issuer(issuer=ISSUER, audience=(AUDIENCE,), jwks="https://login.example/keys", tenant="acme")
    assert (second.audience, second.algorithms) == (("x", "y"), ("ES256", "EdDSA"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithms": ["HS256"]}, "algorithms"),
        ({"algorithms": ["none"]}, "algorithms"),
        ({"algorithms": []}, "algorithms"),
        ({"algorithms": "RS256,ES256"}, "algorithms"),
        ({"jwks": "http://login.example/keys"}, "https"),
        ({"jwks": "ftp://login.example/keys"}, "https"),
        ({"jwks": "file:///etc/keys"}, "https"),
        ({"jwks": ""}, "jwks"),
        ({"issuer": ""}, "empty"),
        ({"audience": []}, "empty"),
        ({"audience": [""]}, "empty"),
        ({"audience": 1}, "audience must be text"),
        ({"audience": [1]}, "audience must be text"),
        ({"tenant_claim": "t"}, "either"),
        ({"tenant": ""}, "either"),
        ({"tenant": "Acme"}, "lower-case"),
        ({"leeway": 5}, "leeway unknown"),
        ({"issuer": None}, "issuer must be text"),
    ],
    ids=str,
)
def test_a_wrong_entry_is_named(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        issuers(tmp_path, ISSUER_OF_FILE | changes)


def test_a_file_without_issuers_or_with_one_twice_is_refused(tmp_path):
    for entries in ([], [ISSUER_OF_FILE] * 2, [1], [{}]):
        with pytest.raises(ConfigError):
            issuers(tmp_path, *entries)
    with pytest.raises(ConfigError, match="cannot read"):
        read_issuers(str(tmp_path / "missing.json"))
    assert issuers(tmp_path, ISSUER_OF_FILE | {"jwks": "http://127.0.0.1:8000/keys"})


@pytest.mark.parametrize("subject", ["anna", "a/b", "auth0|5f", "ü", "x" * 200, "a b", "\ud800"])
def test_the_key_id_of_a_subject_names_its_tenant(subject):
    key_id = key_id_of_subject("acme", subject)
    assert len(key_id) <= 256
    assert key_id.isprintable()
    assert key_id.isascii()
    assert key_of_subject(key_id).tenant_id == "acme"


@pytest.mark.parametrize(
    "key_id", ["dev", "", "oidc/", "oidc/acme", "oidc/acme/", "oidc//x", "oidc/Acme/x", "x/acme/y"]
)
def test_other_key_ids_are_of_no_subject(key_id):
    assert key_of_subject(key_id) is None
