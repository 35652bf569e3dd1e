"""Settings from the environment, read once at the start: `PENSTOCK_<TIER>_<FIELD>` for each field of a dataclass.

An unknown variable of the tier or a value that does not parse stops the start; nothing reads the environment later.
"""

import dataclasses
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, TypeVar

Config = TypeVar("Config", bound="ServiceConfig")

_REGION = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class ConfigError(Exception):
    """The settings are wrong; the message names each variable and what is allowed."""


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def setting(
    default: Any,
    meaning: str,
    *,
    unit: str = "",
    fleet: str = "",
    secret: bool = False,
    show: Callable[[str], str] | None = None,
) -> Any:
    """A documented field. `meaning` and `unit` appear in docs/configuration.md, which `tools/gen_config_docs` writes.

    `fleet` names a variable that all tiers read if their own variable is not set. A secret is masked in `describe`,
    `settings` and repr. `show` returns the part of a value that may be shown; repr does not have the setting then.
    """
    metadata = {"meaning": meaning, "unit": unit, "fleet": fleet, "secret": secret, "show": show}
    return field(default=default, repr=not secret and show is None, metadata=metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceConfig:
    """Settings of every tier. A subclass that checks more calls `ServiceConfig.__post_init__(self)` by name.

    (Zero-argument super() does not work in a slotted dataclass.)
    """

    former_names: ClassVar[Mapping[str, str]] = {}  # by the former field name, the field that replaces it

    listen: str = setting("127.0.0.1:0", "Address of the gRPC server. Port 0 takes a free port.", unit="host:port")
    advertise: str = setting(
        "", "Host, or host and port, by which other processes reach this process. Empty: the bound address."
    )
    instance_id: str = setting(
        "",
        "Name of this process, unique per start. Empty: generated at the start. With a certificate it is the instance "
        "of the certificate, which may be followed by a dot and a suffix.",
    )
    drain_grace: float = setting(30.0, "Longest time for running work to end after SIGTERM.", unit="s")
    metrics_listen: str = setting("", "Address of the Prometheus endpoint `/metrics`. Empty: off.", unit="host:port")
    otlp_endpoint: str = setting(
        "",
        "OTLP/gRPC receiver of traces and metrics. That of routing also receives the spans of proxies. Empty: off.",
        unit="URL",
        fleet="PENSTOCK_OTLP_ENDPOINT",
    )
    log_level: LogLevel = setting(LogLevel.INFO, "Lowest level that is logged.", fleet="PENSTOCK_LOG_LEVEL")
    zone: str = setting(
        "",
        "Zone of this process. A request prefers workers in the zone of its edge. Empty: unknown.",
        fleet="PENSTOCK_ZONE",
    )
    region: str = setting(
        "",
        "Region of this process: at most 63 lower-case letters, digits and inner hyphens. Empty: the mesh is the only"
        " region.",
        fleet="PENSTOCK_REGION",
    )
    admin_listen: str = setting(
        "",
        "Address of operators' services: Admin, channelz and reflection. unix:PATH admits this user. host:port requires"
        " `admin_token` or a certificate of tier `operator`. Empty: off.",
        unit="host:port or unix:path",
    )
    health_listen: str = setting(
        "",
        "Address of a plaintext server with health alone, for probes. Empty: off. The main server has health, too.",
        unit="host:port",
    )
    audit_log: str = setting(
        "",
        "File to which operators' actions are appended. Each process needs its own. Empty: log lines `audit` only; for"
        " auth with a store, `<store>.audit.jsonl`.",
        unit="path",
    )
    admin_token: str = setting(
        "",
        "Bearer token that makes a caller of `admin_listen` an operator. Empty: no token does.",
        fleet="PENSTOCK_ADMIN_TOKEN",
        secret=True,
    )
    tls_certificate: Path | None = setting(
        None,
        "Certificate of this process with intermediate ones, in PEM. With it, all ports between processes require the "
        "certificate of the peer. The file is read again when it changes.",
        unit="path",
        fleet="PENSTOCK_TLS_CERTIFICATE",
    )
    tls_key: Path | None = setting(None, "Key of `tls_certificate`, in PEM.", unit="path", fleet="PENSTOCK_TLS_KEY")
    tls_ca: Path | None = setting(
        None, "Authorities that sign the certificates of peers, in PEM.", unit="path", fleet="PENSTOCK_TLS_CA"
    )
    trust_domain: str = setting(
        "penstock.local",
        "Trust domain of the mesh, the host of the URI name in every certificate. Peers of another one are refused.",
        fleet="PENSTOCK_TRUST_DOMAIN",
    )
    insecure: bool = setting(
        False,
        "Serve plaintext off loopback, to everyone who reaches the port. Not with `tls_certificate`.",
        fleet="PENSTOCK_INSECURE",
    )

    @property
    def audit_log_path(self) -> str:
        """Path of the audit log; empty: no file."""
        return self.audit_log

    def __post_init__(self) -> None:
        check_address("listen", self.listen)
        if self.region:
            check_region("region", self.region)
        self._check_tls()
        for name in ("metrics_listen", "admin_listen", "health_listen"):
            if getattr(self, name):
                check_address(name, getattr(self, name))
        if self.otlp_endpoint and "://" not in self.otlp_endpoint:
            check_address("otlp_endpoint", self.otlp_endpoint)
        if self.drain_grace < 0:
            raise ValueError("drain_grace must not be negative")

    def _check_tls(self) -> None:
        given = [each is not None for each in (self.tls_certificate, self.tls_key, self.tls_ca)]
        if any(given) and not all(given):
            raise ValueError("tls_certificate, tls_key and tls_ca are set together or not at all")
        if all(given) and self.insecure:
            raise ValueError("insecure must be unset if tls_certificate is set")


def check_address(name: str, value: str) -> None:
    """Raise ValueError unless `value` is host:port or unix:path."""
    host, colon, port = value.rpartition(":")
    if value.startswith("unix:") or (host and colon and port.isdecimal() and int(port) < 2**16):
        return
    raise ValueError(f"{name} must be host:port, not {value!r}")


def check_region(name: str, value: str) -> None:
    """Raise ValueError unless `value` can name a region: a DNS label in lower case."""
    if not _REGION.fullmatch(value):
        raise ValueError(
            f"{name} must have at most 63 lower-case letters, digits and inner hyphens, which {value!r} has not"
        )


def variable_prefix(tier: str) -> str:
    return f"PENSTOCK_{tier.upper()}_"


def load(cls: type[Config], tier: str, environ: Mapping[str, str] = os.environ) -> Config:
    """Read the settings of `tier`. Raises ConfigError with all errors found, not only the first."""
    faults: list[str] = []
    values: dict[str, Any] = {}
    types_by_name = typing.get_type_hints(cls)
    for name, variable, text in _present_settings(cls, tier, environ):
        try:
            values[name] = _parse(types_by_name[name], text)
        except ValueError as error:
            faults.append(f"{variable}={text!r}: {error}")
    faults += _unknown(cls, tier, environ)
    if not faults:
        try:
            return cls(**values)
        except ValueError as error:
            faults.append(_with_variable_name(str(error), cls, tier))
    raise ConfigError("\n".join(faults))


def _with_variable_name(message: str, cls: type[ServiceConfig], tier: str) -> str:
    """Replace a field's name at the start of an error with the name of its variable."""
    name, space, rest = message.partition(" ")
    is_field = name in {each.name for each in dataclasses.fields(cls)}
    return f"{variable_prefix(tier)}{name.upper()}{space}{rest}" if is_field else message


def describe(config: ServiceConfig, tier: str) -> str:
    """Return each setting as a line of an environment file, secrets masked."""
    prefix = variable_prefix(tier)
    return "\n".join(f"{prefix}{name.upper()}={value}" for name, value in settings(config).items())


def settings(config: ServiceConfig) -> dict[str, str]:
    """Return the text of each setting by field name, in the form that `load` reads; secrets masked."""
    shown = {}
    for each in dataclasses.fields(config):
        value = getattr(config, each.name)
        show = each.metadata.get("show") or _text
        shown[each.name] = "***" if each.metadata.get("secret") and value else show(value)
    return shown


def _present_settings(
    cls: type[ServiceConfig], tier: str, environ: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield field, variable and text of each setting that is set."""
    for each in dataclasses.fields(cls):
        for variable in (variable_prefix(tier) + each.name.upper(), each.metadata.get("fleet", "")):
            if variable in environ:
                yield each.name, variable, environ[variable]
                break


def _unknown(cls: type[ServiceConfig], tier: str, environ: Mapping[str, str]) -> list[str]:
    prefix = variable_prefix(tier)
    known = {prefix + each.name.upper() for each in dataclasses.fields(cls)}
    unknown = sorted(variable for variable in environ if variable.startswith(prefix) and variable not in known)
    return [_unknown_error(cls, tier, variable, known) for variable in unknown]


def _unknown_error(cls: type[ServiceConfig], tier: str, variable: str, known: Iterable[str]) -> str:
    prefix = variable_prefix(tier)
    if current := cls.former_names.get(variable.removeprefix(prefix).lower()):
        return f"{variable} was renamed: use {prefix}{current.upper()}"
    near = get_close_matches(variable, known, n=1)
    return f"{variable} is not a setting of {tier}" + (f"; did you mean {near[0]}?" if near else "")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _parse(kind: Any, text: str) -> Any:
    """Return `text` as `kind`. Raises ValueError that names the allowed values."""
    if typing.get_origin(kind) in {types.UnionType, typing.Union}:  # X | None: empty is None
        inner = next(each for each in typing.get_args(kind) if each is not types.NoneType)
        return _parse(inner, text) if text else None
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        return tuple(_parse(inner, part.strip()) for part in text.split(",") if part.strip())
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _parse_choice(kind, text)
    return _PARSERS[kind](text)


def _parse_choice(kind: type[StrEnum], text: str) -> StrEnum:
    try:
        return kind(text.lower())
    except ValueError:
        raise ValueError(f"must be one of {', '.join(kind)}") from None


def _parse_bool(text: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError("must be true or false")
    return words[text.lower()]


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _parse_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if math.isnan(value):
        raise ValueError("must be a number")
    return value


_PARSERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    int: _parse_int,
    float: _parse_float,
    bool: _parse_bool,
    Path: Path,
}
