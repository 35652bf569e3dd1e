"""Issuers: whose tokens auth accepts, for whom, signed how, and what their claims mean. Read from a JSON file."""

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.auth.identity.tenant import TENANT_ID_FORMAT
from penstock.chassis.config import ConfigError

# Asymmetric ones only. With a symmetric one, or none, a public key could sign tokens.
ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"})
MAX_ISSUERS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Issuer:
    """One issuer. `tenant` or `tenant_claim` says who is billed."""

    issuer: str  # the exact claim `iss`
    audience: tuple[str, ...]  # one of them must be in the claim `aud`
    jwks: str  # https URL, http URL on loopback, or path of the key set
    algorithms: tuple[str, ...] = ("RS256",)
    tenant: str = ""  # of all tokens of the issuer
    tenant_claim: str = ""  # claim with the tenant's id
    class_claim: str = ""  # claim with batch, standard or interactive; at most the tenant's own class
    models_claim: str = ""  # claim with the models that the caller may use; a token without the claim may use none

    def __post_init__(self) -> None:
        if not self.issuer or not self.audience or not all(self.audience):
            raise ValueError("issuer and audience must not be empty")
        if not self.algorithms or not set(self.algorithms) <= ALGORITHMS:
            given = ", ".join(self.algorithms) or "none"
            raise ValueError(f"algorithms must be some of {', '.join(sorted(ALGORITHMS))}, not {given}")
        if bool(self.tenant) == bool(self.tenant_claim):
            raise ValueError("set either tenant or tenant_claim")
        if self.tenant and not TENANT_ID_FORMAT.fullmatch(self.tenant):
            raise ValueError("tenant must be 1 to 63 lower-case letters, digits and hyphens")
        _check_source(self.jwks)

    @property
    def is_url(self) -> bool:
        return "://" in self.jwks


def read_issuers(path: str) -> list[Issuer]:
    """Return the issuers of a JSON file, a list of objects. Raises ConfigError, which names the entry and the field."""
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the issuers of PENSTOCK_AUTH_ISSUERS={path}: {error}") from error
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_ISSUERS:
        raise ConfigError(f"{path} must be a list of 1 to {MAX_ISSUERS} issuers")
    issuers = [_issuer(f"{path}, entry {number}", entry) for number, entry in enumerate(entries, 1)]
    if len({each.issuer for each in issuers}) < len(issuers):
        raise ConfigError(f"{path} has an issuer twice")
    return issuers


def _issuer(place: str, entry: Any) -> Issuer:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{place} must be an object")
    known = {each.name for each in fields(Issuer)}
    if unknown := sorted(set(entry) - known):
        raise ConfigError(f"{place}: {', '.join(unknown)} unknown; allowed are {', '.join(sorted(known))}")
    values = dict(entry)
    for name in ("audience", "algorithms"):
        if name in values:
            given = values[name]
            values[name] = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list) else given
    for name, value in values.items():
        texts = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(each, str) for each in texts):
            raise ConfigError(f"{place}: {name} must be text" + (" or a list of texts" * isinstance(value, tuple)))
    try:
        return Issuer(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{place}: {error}") from error


def _check_source(jwks: str) -> None:
    """Raise ValueError unless the key set comes from a file, by https, or by http from this host."""
    if not jwks:
        raise ValueError("jwks must be a path or a URL")
    if "://" not in jwks:
        return
    url = urlsplit(jwks)
    if url.scheme == "https" or (url.scheme == "http" and _is_loopback(url.hostname or "")):
        return
    raise ValueError("jwks must be an https URL; by http, anyone on the way could replace the keys")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
