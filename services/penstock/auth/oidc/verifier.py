"""Token verifier: signatures by the key sets of the configured issuers, with a cache. No I/O; `now` is an argument."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from jwt import PyJWS
from jwt.exceptions import PyJWTError

from penstock.auth.identity.authenticator import SigningKeyPending
from penstock.auth.identity.credential_cache import CredentialCache
from penstock.auth.identity.keys import Key
from penstock.auth.oidc import token
from penstock.auth.oidc.key_set import KeySet
from penstock.auth.oidc.token import TokenInvalid
from penstock.chassis.errors import Unavailable

MAX_VERIFIED = 20_000  # tokens; one verification of RSA costs as much as ten lookups
VERIFIED_TTL_S = 300.0  # s
RETRY_AFTER_S = 1.0


class IssuerUnavailable(Unavailable):
    """The keys of the issuer could not be loaded for too long, so that a withdrawn key might still be in use."""

    default_reason = "ISSUER_UNAVAILABLE"


class _Verified(NamedTuple):
    key: Key
    issuer: str


@dataclass(eq=False)
class JwtVerifier:
    """Verifies tokens. `request_load` is called at most once per interval for a key id that an issuer's set lacks."""

    key_sets: dict[str, KeySet]  # by issuer
    leeway: float  # s by which clocks of issuers may differ from ours
    request_load: Callable[[KeySet], None]
    _jws: PyJWS = field(default_factory=PyJWS)
    _verified: CredentialCache[_Verified] = field(default_factory=lambda: CredentialCache(max_entries=MAX_VERIFIED))
    _loading: set[str] = field(default_factory=set)  # issuers whose keys are loaded because of an unknown key id

    def recognizes(self, bearer: str) -> bool:
        return token.looks_like_token(bearer)

    def has_issuer(self, issuer: str) -> bool:
        return issuer in self.key_sets

    def verify(self, bearer: str, now: float) -> Key:
        """Return the caller. Raises TokenInvalid, TokenExpired, IssuerUnavailable or SigningKeyPending."""
        digest = hashlib.sha256(bearer.encode()).digest()
        known = self._verified.find(digest, now)
        if known and not self.key_sets[known.issuer].is_stale(now):
            return known.key
        parsed = token.parse(bearer)
        issuer = parsed.claims.get("iss")
        key_set = self.key_sets.get(issuer) if isinstance(issuer, str) else None
        if key_set is None:
            raise TokenInvalid("the issuer of the token is not configured")
        if key_set.is_stale(now):
            text = "the keys of the token's issuer could not be loaded recently; retry in 1 s"
            raise IssuerUnavailable(text, retry_after=RETRY_AFTER_S)
        self._check_signature(bearer, parsed, key_set, now)
        expires_at = token.check_claims(parsed.claims, key_set.issuer, self.leeway, now)
        key = token.caller_of(parsed.claims, key_set.issuer, now)
        until = min(expires_at, now + VERIFIED_TTL_S)
        self._verified.put(digest, _Verified(key, key_set.issuer.issuer), until)
        return key

    def on_loaded(self, key_sets: Iterable[KeySet], *, has_changed: bool) -> None:
        """Note a load of keys that ended, well or not. Tokens of withdrawn keys must not stay verified."""
        self._loading -= {each.issuer.issuer for each in key_sets}
        if has_changed:
            self._verified.clear()

    def _check_signature(self, bearer: str, parsed: token.ParsedToken, key_set: KeySet, now: float) -> None:
        algorithm, key_id = parsed.algorithm, parsed.key_id
        if algorithm not in key_set.issuer.algorithms:
            raise TokenInvalid("the token is signed with an algorithm that its issuer may not use")
        key = key_set.find(key_id, algorithm)
        if key is None:
            if key_id is not None and not key_set.knows(key_id):
                self._await_key(key_set, now)
            raise TokenInvalid("the token is signed with a key that its issuer does not have")
        try:
            self._jws.decode_complete(bearer, key, algorithms=[algorithm])
        except PyJWTError:
            raise TokenInvalid("the signature of the token is wrong") from None

    def _await_key(self, key_set: KeySet, now: float) -> None:
        """Raise SigningKeyPending if the keys are loaded again, or may be now."""
        name = key_set.issuer.issuer
        if name not in self._loading:
            if not key_set.request(now):
                return
            self._loading.add(name)
            self.request_load(key_set)
        text = "the token is signed with a key that is not known yet; its issuer's keys are being loaded; retry in 1 s"
        raise SigningKeyPending(text, retry_after=RETRY_AFTER_S)
