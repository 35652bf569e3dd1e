from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from penstock.chassis.config import ConfigError, ServiceConfig, describe, load, settings


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True, slots=True)
class GateConfig(ServiceConfig):
    depth: int = 100
    ratio: float = 0.5
    is_open: bool = False
    folder: Path = Path("/var/gate")
    peers: tuple[str, ...] = ()
    limit: int | None = None
    colour: Colour = Colour.RED

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if self.depth < 1:
            raise ValueError("PENSTOCK_GATE_DEPTH must be at least 1")


def gate(**variables: str) -> GateConfig:
    return load(GateConfig, "gate", {f"PENSTOCK_GATE_{name}": text for name, text in variables.items()})


def test_an_empty_environment_gives_the_defaults():
    assert load(GateConfig, "gate", {}) == GateConfig()


def test_each_kind_of_field_is_parsed():
    config = gate(DEPTH="7", RATIO="2e-1", IS_OPEN="on", FOLDER="/tmp/x", PEERS="a:1, b:2,", LIMIT="3", COLOUR="Blue")
    assert config == GateConfig(
        depth=7, ratio=0.2, is_open=True, folder=Path("/tmp/x"), peers=("a:1", "b:2"), limit=3, colour=Colour.BLUE
    )


def test_an_optional_field_left_empty_is_none():
    assert gate(LIMIT="").limit is None


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("DEPTH", "many", "a whole number"),
        ("DEPTH", "1.5", "a whole number"),
        ("DEPTH", "", "a whole number"),
        ("RATIO", "half", "a number"),
        ("RATIO", "nan", "a number"),
        ("IS_OPEN", "maybe", "true or false"),
        ("COLOUR", "green", "one of red, blue"),
        ("LOG_LEVEL", "loud", "one of debug, info, warning, error"),
    ],
)
def test_a_bad_value_is_rejected_with_the_allowed_ones(name, text, allowed):
    with pytest.raises(ConfigError) as failure:
        gate(**{name: text})
    assert str(failure.value) == f"PENSTOCK_GATE_{name}={text!r}: must be {allowed}"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"DEPTH": "0"}, "PENSTOCK_GATE_DEPTH must be at least 1"),
        ({"DRAIN_GRACE": "-1"}, "PENSTOCK_GATE_DRAIN_GRACE must not be negative"),
        ({"LISTEN": "7001"}, "PENSTOCK_GATE_LISTEN must be host:port"),
        ({"LISTEN": "127.0.0.1:70000"}, "PENSTOCK_GATE_LISTEN must be host:port"),
        ({"OTLP_ENDPOINT": "collector"}, "PENSTOCK_GATE_OTLP_ENDPOINT must be host:port"),
        ({"METRICS_LISTEN": ":x"}, "PENSTOCK_GATE_METRICS_LISTEN must be host:port"),
    ],
)
def test_a_value_out_of_range_is_rejected_by_the_name_of_its_variable(variables, message):
    with pytest.raises(ConfigError, match=message):
        gate(**variables)


def test_an_unknown_setting_is_rejected_with_the_nearest_known_one():
    with pytest.raises(ConfigError) as failure:
        gate(DETPH="7")
    assert str(failure.value) == "PENSTOCK_GATE_DETPH is not a setting of gate; did you mean PENSTOCK_GATE_DEPTH?"


def test_all_errors_are_reported_at_once():
    with pytest.raises(ConfigError) as failure:
        gate(DEPTH="x", RATIO="y", ZZZZZZZZ="1")
    assert [line.split("=")[0].split(" ")[0] for line in str(failure.value).splitlines()] == [
        "PENSTOCK_GATE_DEPTH",
        "PENSTOCK_GATE_RATIO",
        "PENSTOCK_GATE_ZZZZZZZZ",
    ]


def test_settings_of_other_tiers_are_ignored():
    environ = {"PENSTOCK_QUEUE_DEPTH": "x", "PENSTOCK_GATED": "x", "HOME": "/"}
    assert load(GateConfig, "gate", environ) == GateConfig()


def test_a_setting_of_the_fleet_applies_unless_the_tier_has_its_own():
    fleet = {"PENSTOCK_OTLP_ENDPOINT": "http://fleet:4317"}
    assert load(GateConfig, "gate", fleet).otlp_endpoint == "http://fleet:4317"
    assert load(GateConfig, "gate", {"PENSTOCK_LOG_LEVEL": "debug"}).log_level == "debug"
    own = fleet | {"PENSTOCK_GATE_OTLP_ENDPOINT": ""}
    assert load(GateConfig, "gate", own).otlp_endpoint == ""


def test_a_region_of_the_fleet_applies_to_every_tier_that_does_not_name_another():
    fleet = {"PENSTOCK_REGION": "eu-west-1"}
    assert load(GateConfig, "gate", fleet).region == "eu-west-1"
    assert load(GateConfig, "gate", fleet | {"PENSTOCK_GATE_REGION": "us"}).region == "us"
    assert load(GateConfig, "gate", {}).region == ""


@pytest.mark.parametrize("name", ["EU", "-eu", "eu-", "e u", "eu.west", "eu,us", "eu=1", "eu\n", "é", "a" * 64])
def test_a_region_that_cannot_name_one_is_rejected_by_its_variable(name):
    with pytest.raises(ConfigError, match="PENSTOCK_GATE_REGION"):
        load(GateConfig, "gate", {"PENSTOCK_REGION": name})
    assert load(GateConfig, "gate", {"PENSTOCK_REGION": "a" * 63}).region == "a" * 63


def test_described_settings_load_as_the_same():
    config = gate(DEPTH="7", IS_OPEN="yes", PEERS="a:1,b:2", LIMIT="3", COLOUR="blue", OTLP_ENDPOINT="http://x:1")
    environ = dict(line.split("=", 1) for line in describe(config, "gate").splitlines())
    assert load(GateConfig, "gate", environ) == config


def test_a_secret_is_used_and_never_shown():
    config = load(GateConfig, "gate", {"PENSTOCK_ADMIN_TOKEN": "hunter2"})
    assert config.admin_token == "hunter2"
    assert "hunter2" not in describe(config, "gate")
    assert settings(config)["admin_token"] == "***"
    assert "hunter2" not in repr(config)
