"""JWTs that are accepted, and how long their keys and verifications are valid."""

import hashlib

import pytest

from penstock.auth.identity.authenticator import Authenticator, SigningKeyPending
from penstock.auth.identity.delegation import DelegationIssuer
from penstock.auth.identity.keys import KeyRing
from penstock.auth.oidc.token import TokenExpired, TokenInvalid
from penstock.auth.oidc.verifier import VERIFIED_TTL_S, IssuerUnavailable
from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_INTERACTIVE, PRIORITY_UNSPECIFIED
from tokens import (
    ALGORITHMS,
    AUDIENCE,
    NOW,
    Provider,
    claims_of,
    jwk,
    signed,
)


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


def test_a_token_and_a_key_are_told_apart():
    provider, keys = Provider(), KeyRing(b"p" * 32)
    found = Authenticator(keys, DelegationIssuer(b"p" * 32), tokens=provider.verifier)
    assert found.authenticate(Credential(bearer=signed()), NOW).key_id == "oidc/acme/anna"
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
    assert provider.verify(signed())
    provider.load(jwk(number=2))
    with pytest.raises(TokenInvalid):
        provider.verify(signed())


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
