"""Settings from the environment, read once at the start: `PENSTOCK_<TIER>_<FIELD>` for each field of a dataclass.

An unknown variable of the tier or a value that does not parse stops the start; nothing reads the environment later.
"""

import dataclasses
import math
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

Config = TypeVar("Config", bound="ServiceConfig")


class ConfigError(Exception):
    """The settings are wrong; the message names each variable and what is allowed."""


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def fleet(variable: str, default: Any = "", *, secret: bool = False) -> Any:
    """A field that the whole fleet shares: `variable` holds where the tier's own variable is not set."""
    return field(default=default, repr=not secret, metadata={"fleet": variable, "secret": secret})


def secret(default: str = "") -> Any:
    """A field that neither `describe` nor repr shows."""
    return field(default=default, repr=False, metadata={"secret": True})


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceConfig:
    """What every tier has. A subclass that checks more calls `ServiceConfig.__post_init__(self)` by name.

    (Zero-argument super() does not work in a slotted dataclass.)
    """

    listen: str = "127.0.0.1:0"  # host:port; port 0: any free one, which the `listening` log line tells
    advertise: str = ""  # host or host:port by which others reach us; empty: as bound
    instance_id: str = ""  # empty: made at the start; set, it must be unique per start
    drain_grace: float = 30.0  # s; longest time for running work after SIGTERM
    metrics_listen: str = ""  # host:port of /metrics; empty: off
    otlp_endpoint: str = fleet("PENSTOCK_OTLP_ENDPOINT")  # http://host:port of an OTLP/gRPC receiver; empty: off
    log_level: LogLevel = fleet("PENSTOCK_LOG_LEVEL", LogLevel.INFO)  # noqa: RUF009  # a field, made once
    zone: str = fleet("PENSTOCK_ZONE")  # where it runs; a request prefers workers of its edge's zone. Empty: unknown
    admin_token: str = fleet("PENSTOCK_ADMIN_TOKEN", secret=True)  # empty: administration from loopback alone

    def __post_init__(self) -> None:
        check_address("listen", self.listen)
        if self.metrics_listen:
            check_address("metrics_listen", self.metrics_listen)
        if self.otlp_endpoint and "://" not in self.otlp_endpoint:
            check_address("otlp_endpoint", self.otlp_endpoint)
        if self.drain_grace < 0:
            raise ValueError("drain_grace must not be negative")


def check_address(name: str, value: str) -> None:
    """Raise ValueError unless `value` is host:port or unix:path."""
    host, colon, port = value.rpartition(":")
    if value.startswith("unix:") or (host and colon and port.isdecimal() and int(port) < 2**16):
        return
    raise ValueError(f"{name} must be host:port, not {value!r}")


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
        shown[each.name] = "***" if each.metadata.get("secret") and value else _text(value)
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
    faults = []
    for variable in sorted(environ):
        if variable.startswith(prefix) and variable not in known:
            near = get_close_matches(variable, known, n=1)
            faults.append(f"{variable} is not a setting of {tier}" + (f"; did you mean {near[0]}?" if near else ""))
    return faults


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
