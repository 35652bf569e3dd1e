"""Authenticator: checks credentials, and limits failures per source and per edge. `now` is an argument."""

import secrets
from dataclasses import dataclass, field
from typing import Protocol

from penstock.auth.identity.credential_cache import CredentialCache
from penstock.auth.identity.delegation import DelegationInvalid, DelegationIssuer, key_of_token
from penstock.auth.identity.failure_limiter import FailureLimit, FailureLimiter, TooManyFailures
from penstock.auth.identity.keys import Key, KeyRing
from penstock.chassis.errors import PenstockError, PermissionDenied, Unauthenticated, Unavailable
from penstock.mesh.credential_hash import CredentialHash
from penstock.mesh.v1.admission_pb2 import Credential

MAX_CACHED = 20_000  # credentials of each kind
REJECTION_TTL_S = 5.0  # s; longer would delay a key that is restored or a token that becomes valid
ACCEPTED_TTL_S = 600.0  # s for which a caller is not affected by the failures of its source
MAX_LIMITED_NAMES = 50_000  # sources and edges


class SigningKeyPending(Unavailable):
    """A token names a key that its issuer may have added recently. The keys are being loaded."""

    default_reason = "ISSUER_KEYS_PENDING"


class TokenVerifier(Protocol):
    """Verifies JWTs."""

    def recognizes(self, bearer: str) -> bool:
        """Whether the credential has the form of a token."""

    def has_issuer(self, issuer: str) -> bool:
        """Whether tokens of the issuer are accepted."""

    def verify(self, bearer: str, now: float) -> Key:
        """Return the caller as a key. Raises Unauthenticated, PermissionDenied or Unavailable."""


@dataclass(frozen=True, slots=True)
class FailureLimits:
    """Failing credentials per minute, and at once."""

    per_source: int = 60
    per_edge: int = 600


@dataclass(eq=False)
class Authenticator:
    """Checks credentials: API keys, delegations, and JWTs if a verifier is given.

    A failing credential costs a lookup until its rejection expires. Beyond a limit, credentials of the source are not
    looked at, so that a guess is not even answered; callers that were accepted recently are served on, because a source
    may be the address of many. The failures of a source over its limit do not count for its edge.

    Delegations have the limit of an edge for themselves, because all lines of a batch present the same one. Only one
    that auth has not issued is a guess, and it counts again once its rejection has expired. Thus a batch whose key is
    revoked limits no caller, and no batch limits the callers of its edge.
    """

    keys: KeyRing
    delegations: DelegationIssuer
    limits: FailureLimits = FailureLimits()
    tokens: TokenVerifier | None = None
    failures: int = 0
    limited: int = 0
    _limiter: FailureLimiter = field(default_factory=lambda: FailureLimiter(max_names=MAX_LIMITED_NAMES))
    _rejected: CredentialCache[PenstockError] = field(default_factory=lambda: CredentialCache(max_entries=MAX_CACHED))
    _accepted: CredentialCache[bool] = field(default_factory=lambda: CredentialCache(max_entries=MAX_CACHED))
    _hash: CredentialHash = field(default_factory=lambda: CredentialHash(secrets.token_bytes(32)), repr=False)

    def authenticate(self, credential: Credential, now: float, *, edge_id: str = "") -> Key:
        """Return the caller's key. Raises Unauthenticated, PermissionDenied, TooManyFailures or Unavailable."""
        if credential.delegation:
            edge_id = edge_id and f"{edge_id}, delegations"
        elif not credential.bearer:
            return self.keys.identify("", loopback=False, now=now)  # raises; it is no guess
        digest = self._hash.digest(credential)
        if not self._accepted.find(digest, now):
            self.check_limit(credential.source, edge_id, now)
        if rejection := self._rejected.find(digest, now):
            if not credential.delegation:
                self.record_failure(credential.source, edge_id, now)
            raise rejection.with_traceback(None)
        try:
            key = self._check(credential, now)
        except (Unauthenticated, PermissionDenied) as error:
            self._rejected.put(digest, error, now + REJECTION_TTL_S)
            if not credential.delegation or isinstance(error, DelegationInvalid):
                self.record_failure(credential.source, edge_id, now)
            raise
        self._accepted.put(digest, True, now + ACCEPTED_TTL_S)
        return key

    def owner(self, credential: Credential) -> Key | None:
        """Return the key that a credential presents, usable or not; None if it is unknown, or a token."""
        if not credential.delegation:
            return self.keys.owner(credential.bearer)
        found = self.delegations.read(credential.delegation)
        return self.keys.by_id(found.key_id) if found and found.key_id in self.keys else None

    def forget_rejections(self) -> None:
        """Check all credentials again, as keys have changed."""
        self._rejected.clear()

    def check_limit(self, source: str, edge_id: str, now: float) -> None:
        """Raise TooManyFailures if the source or the edge has no failure left."""
        if wait := self._limiter.retry_after(self._limits_of(source, edge_id), now):
            self.limited += 1
            raise TooManyFailures(wait)

    def record_failure(self, source: str, edge_id: str, now: float) -> None:
        self.failures += 1
        self._limiter.record(self._limits_of(source, edge_id), now)

    def _check(self, credential: Credential, now: float) -> Key:
        if credential.delegation:
            return self._delegator(credential, now)
        if self.tokens and self.tokens.recognizes(credential.bearer):
            return self.tokens.verify(credential.bearer, now)
        return self.keys.identify(credential.bearer, loopback=credential.loopback, now=now)

    def _delegator(self, credential: Credential, now: float) -> Key:
        """Return the key or the token's caller for which a delegation was issued."""
        if credential.bearer:
            raise DelegationInvalid("a credential is either a bearer or a delegation")
        found = self.delegations.verify(credential.delegation, now)
        if not found.issuer:
            return self.keys.delegator(found.key_id, found.tenant_id, now)
        if not (self.tokens and self.tokens.has_issuer(found.issuer)):
            text = f"the issuer of the token of {found.key_id} is no longer configured"
            raise Unauthenticated(text, reason="TOKEN_INVALID")
        return key_of_token(found)

    def _limits_of(self, source: str, edge_id: str) -> list[FailureLimit]:
        found = [FailureLimit(f"source {source}", self.limits.per_source)] if source else []
        return [*found, FailureLimit(f"edge {edge_id}", self.limits.per_edge)] if edge_id else found
