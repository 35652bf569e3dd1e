"""A corpus of JWTs, of which none is accepted."""

import base64
import hmac
import json

import pytest

from penstock.auth.identity.authenticator import Authenticator, SigningKeyPending
from penstock.auth.identity.delegation import DelegationIssuer
from penstock.auth.identity.keys import KeyRing
from penstock.auth.oidc.token import TokenExpired, TokenInvalid
from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.admission_pb2 import Credential
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
    found = Authenticator(KeyRing(b"p" * 32), DelegationIssuer(b"p" * 32), tokens=provider.verifier)
    with pytest.raises(PenstockError):
        found.authenticate(Credential(bearer=CORPUS[name], loopback=True), NOW)
