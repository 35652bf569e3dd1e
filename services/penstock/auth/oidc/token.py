"""Tokens: the strict form of a JWT, and its claims as a caller. No signatures; `now` is an argument."""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.auth.identity.keys import Key
from penstock.auth.identity.subject import key_id_of_subject
from penstock.auth.identity.tenant import TENANT_ID_FORMAT
from penstock.auth.oidc.issuer import Issuer
from penstock.chassis.errors import Unauthenticated
from penstock.mesh.limits.bounds import BEARER_CHARS, MODEL_NAME_CHARS
from penstock.v1.inference_pb2 import (
    PRIORITY_BATCH,
    PRIORITY_INTERACTIVE,
    PRIORITY_STANDARD,
    PRIORITY_UNSPECIFIED,
    Priority,
)

_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
# Headers that say where a key is, or that change how a token is read. Keys come from the configured key set alone.
_REFUSED_HEADERS = frozenset({"jku", "x5u", "jwk", "x5c", "crit", "b64", "zip", "enc"})
MAX_KEY_ID_CHARS = 256
MAX_MODELS = 64
MAX_TIME = 2**53  # s; larger numbers are no dates
_PRIORITIES: Mapping[str, "Priority.ValueType"] = MappingProxyType(
    {"batch": PRIORITY_BATCH, "standard": PRIORITY_STANDARD, "interactive": PRIORITY_INTERACTIVE}
)


class TokenInvalid(Unauthenticated):
    """The token is not one that a configured issuer signed for this mesh."""

    default_reason = "TOKEN_INVALID"


class TokenExpired(Unauthenticated):
    """The token was valid."""

    default_reason = "TOKEN_EXPIRED"


class ParsedToken(NamedTuple):
    """A token in strict form. Nothing in it is trusted before its signature is verified."""

    algorithm: str
    key_id: str | None
    claims: Mapping[str, Any]


def looks_like_token(bearer: str) -> bool:
    return bearer.startswith("ey") or bearer.count(".") == 2


def parse(bearer: str) -> ParsedToken:
    """Return the parts of a token. Raises TokenInvalid for every form that two readers might read differently."""
    if len(bearer) >= BEARER_CHARS:
        raise TokenInvalid(f"the token must have less than {BEARER_CHARS} characters; request one with fewer claims")
    parts = bearer.split(".")
    if len(parts) != 3 or not all(_BASE64URL.fullmatch(each) for each in parts):
        raise TokenInvalid("the token is not a signed JWT in compact form")
    header, claims = (_json(each) for each in parts[:2])
    _decoded(parts[2])
    if refused := sorted(_REFUSED_HEADERS & header.keys()):
        raise TokenInvalid(f"tokens with the header {refused[0]} are not accepted")
    algorithm, key_id, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise TokenInvalid("the token's headers alg and typ are not those of a signed JWT")
    if key_id is not None and not (isinstance(key_id, str) and 0 < len(key_id) <= MAX_KEY_ID_CHARS):
        raise TokenInvalid("the token's header kid is no key id")
    return ParsedToken(algorithm, key_id, claims)


def check_claims(claims: Mapping[str, Any], issuer: Issuer, leeway: float, now: float) -> float:
    """Return the time in s at which the token expires, leeway included. Raises TokenInvalid or TokenExpired."""
    audience = claims.get("aud")
    listed = [audience] if isinstance(audience, str) else audience
    if claims.get("iss") != issuer.issuer:
        raise TokenInvalid("the token is of another issuer")
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise TokenInvalid("the token's claim aud is no audience")
    if not set(listed) & set(issuer.audience):
        raise TokenInvalid("the token is for another audience")
    expires_at, issued_at = _time(claims, "exp"), _time(claims, "iat")
    if issued_at > now + leeway or ("nbf" in claims and _time(claims, "nbf") > now + leeway):
        raise TokenInvalid("the token is not valid yet; check the clock of its issuer")
    if expires_at + leeway <= now:
        raise TokenExpired("the token has expired; request a new one")
    return expires_at + leeway


def caller_of(claims: Mapping[str, Any], issuer: Issuer, now: float) -> Key:
    """Return the caller of a verified token as a key. Raises TokenInvalid."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject:
        raise TokenInvalid("the token has no claim sub")
    tenant = issuer.tenant or claims.get(issuer.tenant_claim)
    if not isinstance(tenant, str) or not TENANT_ID_FORMAT.fullmatch(tenant):
        raise TokenInvalid(f"the token's claim {issuer.tenant_claim} is no tenant id")
    return Key(
        key_id=key_id_of_subject(tenant, subject),
        tenant_id=tenant,
        digest=b"",
        created_at=now,
        priority=_priority(claims, issuer),
        models=_models(claims, issuer),
        issuer=issuer.issuer,
    )


def _priority(claims: Mapping[str, Any], issuer: Issuer) -> "Priority.ValueType":
    if not issuer.class_claim or issuer.class_claim not in claims:
        return PRIORITY_UNSPECIFIED
    name = claims[issuer.class_claim]
    if not isinstance(name, str) or name not in _PRIORITIES:
        raise TokenInvalid(f"the token's claim {issuer.class_claim} must be one of {', '.join(_PRIORITIES)}")
    return _PRIORITIES[name]


def _models(claims: Mapping[str, Any], issuer: Issuer) -> frozenset[str] | None:
    """Return the models that the caller may use; None for all."""
    if not issuer.models_claim:
        return None
    given = claims.get(issuer.models_claim, [])
    names = given.split() if isinstance(given, str) else given
    if not isinstance(names, list) or len(names) > MAX_MODELS:
        raise TokenInvalid(f"the token's claim {issuer.models_claim} is no list of at most {MAX_MODELS} models")
    if not all(isinstance(each, str) and len(each) <= MODEL_NAME_CHARS for each in names):
        raise TokenInvalid(f"the token's claim {issuer.models_claim} must name models")
    return frozenset(names)


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TIME:  # false for NaN
        return float(value)
    raise TokenInvalid(f"the token's claim {name} is no time")


def _json(part: str) -> dict[str, Any]:
    try:
        found = json.loads(_decoded(part).decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise TokenInvalid("a part of the token is no JSON object without duplicate names") from None
    if not isinstance(found, dict):
        raise TokenInvalid("a part of the token is no JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate names")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _decoded(part: str) -> bytes:
    """Return the bytes of a part. Raises TokenInvalid unless the text is the only one for these bytes."""
    try:
        raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        raise TokenInvalid("a part of the token is not base64url") from None
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != part:
        raise TokenInvalid("a part of the token is not base64url")
    return raw
