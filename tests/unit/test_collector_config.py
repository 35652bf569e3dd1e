"""The shipped configuration of the OpenTelemetry Collector names components and attributes that exist."""

import re

import pytest
import yaml

from paths import REPO
from penstock.chassis.observability import semconv

CONFIG = yaml.safe_load((REPO / "deploy" / "monitoring" / "otel-collector.yaml").read_text())
POLICIES = {each["name"]: each for each in CONFIG["processors"]["tail_sampling"]["policies"]}
NAMES = {value for name, value in vars(semconv).items() if name.isupper()}


def test_every_component_is_used_and_every_used_one_is_defined():
    pipelines = CONFIG["service"]["pipelines"]
    assert pipelines.keys() == {"traces", "metrics"}
    for kind in ("receivers", "processors", "exporters"):
        used = {name for pipeline in pipelines.values() for name in pipeline[kind]}
        assert used == CONFIG[kind].keys()
    for pipeline in pipelines.values():
        assert pipeline["processors"][0] == "memory_limiter"
        assert pipeline["processors"][-1] == "batch"


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_policy_has_the_settings_of_its_type_and_reads_attributes_of_the_mesh(policy):
    assert policy.keys() == {"name", "type", policy["type"]}
    settings = policy[policy["type"]]
    keys = [settings["key"]] if "key" in settings else []
    for condition in settings.get("span", ()):
        keys += re.findall(r'attributes\["([^"]+)"\]', condition)
    assert set(keys) <= NAMES


def test_errors_are_kept_and_only_the_rest_is_sampled():
    assert POLICIES["errors"]["status_code"] == {"status_codes": ["ERROR"]}
    assert [each["name"] for each in POLICIES.values() if each["type"] == "probabilistic"] == ["rest"]
