"""JWTs: what is accepted, and a corpus of tokens of which none is."""

import base64
import hashlib
import hmac
import json

import pytest

from penstock.auth.identity.authenticator import Authenticator, SigningKeyPending
from penstock.auth.identity.keys import KeyRing
from penstock.auth.identity.subject import key_id_of_subject, key_of_subject
from penstock.auth.oidc.issuer import Issuer, read_issuers
from penstock.auth.oidc.key_set import KeySet, KeySetInvalid
from penstock.auth.oidc.token import TokenExpired, TokenInvalid
from penstock.auth.oidc.verifier import VERIFIED_TTL_S, IssuerUnavailable
from penstock.chassis.config import ConfigError
from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_INTERACTIVE, PRIORITY_UNSPECIFIED
from tokens import (
    ALGORITHMS,
    AUDIENCE,
    ISSUER,
    NOW,
    Provider,
    claims_of,
    encoded,
    jwk,
    key_set_of,
    private_key,
    public_pem,
    signed,
    signed_parts,
)

ISSUER_OF_FILE = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": "https://login.example/keys", "tenant": "acme"}


@pytest.fixture(scope="module")
def provider():
    return Provider()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_each_configured_algorithm_is_accepted(provider, algorithm):
    key = provider.verify(signed(algorithm=algorithm, kid=f"key-{algorithm}"))
    assert (key.key_id, key.tenant_id, key.priority, key.models) == (
        *("oidc/acme/anna", "acme", PRIORITY_UNSPECIFIED),
        frozenset(),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": ["x", AUDIENCE]},
        {"aud": "other-service"},
        {"nbf": NOW + 29},
        {"iat": NOW + 29},
        {"exp": NOW - 29},
        {"exp": NOW + 0.5},
        {"nonce": "n", "scope": "a b"},
    ],
    ids=str,
)
def test_claims_within_the_leeway_and_unknown_claims_are_accepted(provider, changes):
    assert provider.verify(signed(claims_of(**changes))).tenant_id == "acme"


@pytest.mark.parametrize("headers", [{"typ": "at+jwt"}, {"x5t": "thumbprint"}], ids=str)
def test_harmless_headers_are_accepted(provider, headers):
    assert provider.verify(signed(headers=headers)).tenant_id == "acme"


def test_claims_become_class_and_models(provider):
    key = provider.verify(signed(claims_of(**{"class": "batch", "models": ["a", "b"]})))
    assert (key.priority, key.models) == (PRIORITY_BATCH, {"a", "b"})
    key = provider.verify(signed(claims_of(**{"class": "interactive", "models": "a b"})))
    assert (key.priority, key.models) == (PRIORITY_INTERACTIVE, {"a", "b"})


# The corpus.


def hmac_signed(secret: bytes, header=None):
    message = f"{encoded(header or {'alg': 'HS256', 'typ': 'JWT', 'kid': 'key-1'})}.{encoded(claims_of())}"
    return f"{message}.{encoded(hmac.digest(secret, message.encode(), 'sha256'))}"


def with_zeros(algorithm):
    return f"{encoded({'alg': algorithm, 'kid': f'key-{algorithm}'})}.{encoded(claims_of())}.{encoded(bytes(64))}"


def nested(depth):
    return b'{"a":' * depth + b"1" + b"}" * depth


def duplicate(name, first, second):
    body = json.dumps(claims_of(**{name: None}))[:-1]
    return f'{body}, "{name}": {json.dumps(first)}, "{name}": {json.dumps(second)}}}'.encode()


HEADER = {"alg": "RS256", "typ": "JWT", "kid": "key-1"}
GOOD = signed()
PARTS = GOOD.split(".")
OTHER_KEY = private_key("rsa", 99)


def unsigned(algorithm, signature=""):
    return f"{encoded({'alg': algorithm, 'typ': 'JWT'})}.{encoded(claims_of())}.{signature}"


def swapped_last_character(token):
    """Another text of the same bytes: the last character of a base64url text has unused bits."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return token[:-1] + alphabet[alphabet.index(token[-1]) ^ 1]


ATTACKER_JWK = jwk("RS256", "key-1", 99, alg="RS256")
CORPUS = {
    # Algorithms.
    **{f"alg {each}": unsigned(each) for each in ("none", "None", "NONE", "nOnE", "")},
    "alg none with a signature": unsigned("none", PARTS[2]),
    "alg none with an empty part left out": unsigned("none").rstrip("."),
    "HS256 with the public key as PEM": hmac_signed(public_pem()),
    "HS256 with the public key without a line end": hmac_signed(public_pem().strip()),
    "HS256 with the key set": hmac_signed(key_set_of(jwk())),
    "HS256 with the modulus": hmac_signed(base64.urlsafe_b64decode(jwk()["n"] + "==")),
    "HS256 with an empty key": hmac_signed(b""),
    "HS384 by name": hmac_signed(public_pem(), {"alg": "HS384", "kid": "key-1"}),
    "an algorithm that is not configured": signed(algorithm="RS512"),
    "RS256 said to be PS256": signed_parts({"alg": "PS256", "kid": "key-PS256"}, claims_of()),
    "a key of another algorithm": signed_parts({"alg": "RS256", "kid": "key-PS256"}, claims_of()),
    "ES256 with the id of an RSA key": signed(algorithm="ES256", kid="key-1"),
    "no alg": signed_parts({"kid": "key-1"}, claims_of()),
    "alg a number": signed_parts({"alg": 256, "kid": "key-1"}, claims_of()),
    "alg a list": signed_parts({"alg": ["RS256"], "kid": "key-1"}, claims_of()),
    "alg null": signed_parts({"alg": None, "kid": "key-1"}, claims_of()),
    "alg in other letters": signed_parts({"alg": "rs256", "kid": "key-1"}, claims_of()),
    "alg with a blank": signed_parts({"alg": "RS256 ", "kid": "key-1"}, claims_of()),
    # Keys.
    "another key": signed(number=99),
    "another key without an id": signed(number=99, kid=None),
    "no id where several keys fit": signed(kid=None),
    **{
        f"kid {each!r}": signed(kid=each, key=OTHER_KEY)
        for each in (
            *("../../../dev/null", "/dev/null", "file:///etc/passwd", "https://evil.example/keys", "", " key-1"),
            *("key-1' OR '1'='1", "key-1\0", "KEY-1", "#0", "key-1; DROP TABLE keys", "x" * 300, "__class__"),
        )
    },
    "kid a number": signed_parts({"alg": "RS256", "kid": 1}, claims_of(), key=OTHER_KEY),
    "kid a list": signed_parts({"alg": "RS256", "kid": ["key-1"]}, claims_of()),
    "kid an object": signed_parts({"alg": "RS256", "kid": {"a": 1}}, claims_of()),
    "jku": signed(number=99, headers={"jku": "https://evil.example/keys"}),
    "jku of the provider": signed(headers={"jku": "https://login.example/keys"}),
    "x5u": signed(number=99, headers={"x5u": "https://evil.example/cert"}),
    "jwk": signed(number=99, headers={"jwk": ATTACKER_JWK}),
    "x5c": signed(number=99, headers={"x5c": ["MIIB"]}),
    # Headers.
    "crit": signed(headers={"crit": ["exp"]}),
    "b64 false": signed_parts(HEADER | {"b64": False}, claims_of()),
    "zip": signed(headers={"zip": "DEF"}),
    "a nested token by typ": signed_parts(HEADER | {"typ": "JWE"}, claims_of()),
    "typ a number": signed_parts(HEADER | {"typ": 1}, claims_of()),
    "a header that is a list": signed_parts([HEADER], claims_of()),
    "a header with two alg": signed_parts(b'{"alg":"none","alg":"RS256","kid":"key-1"}', claims_of()),
    # Times.
    "expired": signed(claims_of(exp=NOW - 31)),
    "expired at the end of the leeway": signed(claims_of(exp=NOW - 30)),
    "expired long ago": signed(claims_of(exp=1)),
    "nbf in the future": signed(claims_of(nbf=NOW + 33)),
    "iat in the future": signed(claims_of(iat=NOW + 33)),
    "no exp": signed(claims_of(exp=None)),
    "no iat": signed(claims_of(iat=None)),
    **{
        f"exp {each!r}": signed_parts(HEADER, claims_of() | {"exp": each})
        for each in (str(NOW + 300), None, True, [NOW + 300], {"v": NOW}, -1, 2**60, 1e300)
    },
    "exp NaN": signed_parts(HEADER, json.dumps(claims_of())[:-1].encode() + b', "exp2": NaN}'),
    "exp infinite": signed_parts(HEADER, json.dumps(claims_of(exp=None))[:-1].encode() + b', "exp": 1e999}'),
    "exp of 5,000 digits": signed_parts(
        HEADER, json.dumps(claims_of(exp=None))[:-1].encode() + b', "exp": ' + b"9" * 1_000 + b"}"
    ),
    "nbf as text": signed_parts(HEADER, claims_of(nbf=str(NOW - 5))),
    "iat as text": signed_parts(HEADER, claims_of(iat=str(NOW - 5))),
    # Issuer, audience, subject, tenant.
    **{
        f"iss {each!r}": signed_parts(HEADER, claims_of() | {"iss": each})
        for each in (
            *("https://login.example", "https://login.example/ ", "https://evil.example/", ISSUER.upper(), "", None),
            *([ISSUER], 1, {"a": ISSUER}),
        )
    },
    "no iss": signed(claims_of(iss=None)),
    **{
        f"aud {each!r}": signed_parts(HEADER, claims_of() | {"aud": each})
        for each in (
            *("penstock2", "Penstock", "", None, [], ["x"], 1, [1, "penstock"], {"penstock": True}, [["penstock"]]),
            *("penstock other-service", ["penstock\0"]),
        )
    },
    "no aud": signed(claims_of(aud=None)),
    **{f"sub {each!r}": signed_parts(HEADER, claims_of() | {"sub": each}) for each in ("", None, 1, ["anna"])},
    **{
        f"tenant {each!r}": signed_parts(HEADER, claims_of() | {"tenant": each})
        for each in (*("", None, 1, ["acme"], "Acme", "acme/x", "../acme", "a" * 64, "acme\n", "acme' OR 1=1"),)
    },
    "no tenant": signed(claims_of(tenant=None)),
    **{f"class {each!r}": signed(claims_of(**{"class": each})) for each in ("root", 1, ["batch"], "")},
    **{f"models {each!r:.40}": signed(claims_of(models=each)) for each in (1, {"a": 1}, [1], ["m" * 300], ["m"] * 65)},
    # Duplicate names.
    "two exp": signed_parts(HEADER, duplicate("exp", NOW - 1000, NOW + 300)),
    "two tenants": signed_parts(HEADER, duplicate("tenant", "blue", "acme")),
    "two aud": signed_parts(HEADER, duplicate("aud", "x", AUDIENCE)),
    "two names within a claim": signed_parts(HEADER, json.dumps(claims_of())[:-1].encode() + b',"x":{"a":1,"a":2}}'),
    # Forms.
    "cut signature": GOOD[:-10],
    "no signature": ".".join(PARTS[:2]) + ".",
    "two parts": ".".join(PARTS[:2]),
    "four parts": GOOD + ".x",
    "five parts": GOOD + ".x.y",
    "padding": GOOD + "==",
    "padding within": f"{PARTS[0]}=.{PARTS[1]}.{PARTS[2]}",
    "standard base64": ".".join([*PARTS[:2], base64.b64encode(b"\xfb\xff" * 128).decode()]),
    "a line end": GOOD + "\n",
    "a blank before": " " + GOOD,
    "a blank within": GOOD.replace(".", ". ", 1),
    "another text of the same signature": swapped_last_character(GOOD),
    "a changed payload": f"{PARTS[0]}.{encoded(claims_of(tenant='blue'))}.{PARTS[2]}",
    "a changed header": f"{encoded(HEADER | {'x': 1})}.{PARTS[1]}.{PARTS[2]}",
    "the signature of another token": f"{PARTS[0]}.{PARTS[1]}.{signed(claims_of(sub='eve')).split('.')[2]}",
    "an empty payload": signed_parts(HEADER, b""),
    "a payload that is a list": signed_parts(HEADER, [claims_of()]),
    "a payload that is text": signed_parts(HEADER, "claims"),
    "a payload that is null": signed_parts(HEADER, b"null"),
    "a payload with a byte order mark": signed_parts(HEADER, b"\xef\xbb\xbf" + json.dumps(claims_of()).encode()),
    "a payload that is not UTF-8": signed_parts(HEADER, b'{"iss": "\xff"}'),
    "a payload in UTF-16": signed_parts(HEADER, json.dumps(claims_of()).encode("utf-16")),
    "a deeply nested payload": signed_parts(HEADER, nested(400)),
    "a token within the token": signed_parts(HEADER | {"cty": "JWT"}, GOOD.encode()),
    "huge": signed(claims_of(padding="x" * 20_000)),
    "of the largest size that is read": signed(claims_of(padding="x" * 2_700)).ljust(4_096, "A"),
    "JSON form": json.dumps({"protected": PARTS[0], "payload": PARTS[1], "signature": PARTS[2]}),
    "letters": "eyJhbGciOiJSUzI1NiJ9",
    "only dots": "..",
    "characters beyond ASCII": GOOD.replace("e", "е", 1),
    "EdDSA of zero bytes": with_zeros("EdDSA"),
    "ES256 of zero bytes": with_zeros("ES256"),
    "RS256 of zero bytes": f"{PARTS[0]}.{PARTS[1]}.{encoded(bytes(256))}",
    "RS256 of one": f"{PARTS[0]}.{PARTS[1]}.{encoded(bytes(255) + bytes([1]))}",
}


def test_the_corpus_is_large():
    assert len(CORPUS) >= 60
    assert len(set(CORPUS.values())) > len(CORPUS) - 3


@pytest.mark.parametrize("name", CORPUS)
def test_no_token_of_the_corpus_is_accepted(name):
    """Also not once its key id has been looked for."""
    provider = Provider()
    for now in (NOW, NOW + 1.0):
        with pytest.raises((TokenInvalid, TokenExpired, SigningKeyPending)):
            provider.verify(CORPUS[name], now)
        provider.load(jwk("RS256", "key-1"), *(jwk(each, f"key-{each}") for each in ALGORITHMS), now=now)
    with pytest.raises((TokenInvalid, TokenExpired)):
        provider.verify(CORPUS[name], NOW + 1.0)


@pytest.mark.parametrize("name", CORPUS)
def test_the_authenticator_rejects_each_token_of_the_corpus(name):
    provider = Provider()
    found = Authenticator(KeyRing(b"p" * 32), tokens=provider.verifier)
    with pytest.raises(PenstockError):
        found.authenticate(Credential(bearer=CORPUS[name], loopback=True), NOW)


def test_a_token_and_a_key_are_told_apart():
    provider, keys = Provider(), KeyRing(b"p" * 32)
    found = Authenticator(keys, tokens=provider.verifier)
    assert found.authenticate(Credential(bearer=GOOD), NOW).key_id == "oidc/acme/anna"
    with pytest.raises(PenstockError, match="this API key is unknown"):
        found.authenticate(Credential(bearer="pk_a_" + "x" * 26), NOW)


# Keys of an issuer.


def test_a_signing_key_that_is_added_is_loaded_at_its_first_token_and_at_most_once_per_interval():
    provider = Provider()
    token = signed(kid="key-2", number=2)
    for _ in range(3):
        with pytest.raises(SigningKeyPending):
            provider.verify(token)
    assert provider.requested == [provider.key_set]
    provider.load(jwk(), jwk(kid="key-2", number=2))
    assert provider.verify(token).tenant_id == "acme"
    for number in range(50):
        with pytest.raises(TokenInvalid):
            provider.verify(signed(kid=f"unknown-{number}", number=2), NOW + 9.0)
    assert len(provider.requested) == 1
    with pytest.raises(SigningKeyPending):
        provider.verify(signed(kid="unknown", number=2), NOW + 10.0)
    assert len(provider.requested) == 2


def test_a_withdrawn_key_is_refused_at_once_also_for_a_token_that_was_verified():
    provider = Provider()
    provider.load(jwk(), jwk(kid="key-2", number=2))
    token = signed(kid="key-2", number=2)
    assert provider.verify(token)
    provider.load(jwk())
    with pytest.raises(SigningKeyPending):
        provider.verify(token)
    provider.load(jwk())
    with pytest.raises(TokenInvalid):
        provider.verify(token)


def test_a_replaced_key_with_the_same_id_refuses_tokens_of_the_former_one():
    provider = Provider()
    assert provider.verify(GOOD)
    provider.load(jwk(number=2))
    with pytest.raises(TokenInvalid):
        provider.verify(GOOD)


def test_tokens_of_an_issuer_whose_keys_are_too_old_are_refused():
    provider = Provider()
    long = signed(claims_of(exp=NOW + 10_000))
    assert provider.verify(long, NOW + 3_600.0)
    with pytest.raises(IssuerUnavailable):
        provider.verify(long, NOW + 3_600.1)
    provider.key_set.load(provider.key_set._document, NOW + 3_700.0)
    assert provider.verify(long, NOW + 3_700.0)


def test_a_verified_token_is_refused_once_it_expires():
    provider = Provider()
    token = signed(claims_of(exp=NOW + 5))
    assert provider.verify(token)
    assert provider.verify(token, NOW + 34.9)
    with pytest.raises(TokenExpired):
        provider.verify(token, NOW + 35.0)


def test_a_verified_token_is_verified_again_after_a_while():
    provider, token = Provider(), signed(claims_of(exp=NOW + 10_000))
    provider.verify(token)
    digest = hashlib.sha256(token.encode()).digest()
    assert provider.verifier._verified.find(digest, NOW + VERIFIED_TTL_S - 1)
    assert not provider.verifier._verified.find(digest, NOW + VERIFIED_TTL_S)


def test_a_token_without_a_key_id_is_accepted_where_one_key_fits():
    provider = Provider()
    provider.load(jwk(), jwk("ES256", "key-2"))
    assert provider.verify(signed(kid=None)).tenant_id == "acme"


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
    assert provider.verify(GOOD)  # the former keys stay in use


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
