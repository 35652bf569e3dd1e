"""The settings of every tier: each is documented, and a former name is rejected with the present one."""

import dataclasses
import re
import subprocess
import sys

import pytest

from paths import REPO
from penstock.auth.config import AuthConfig
from penstock.chassis.config import ConfigError, ServiceConfig, load
from penstock.edge.config import EdgeConfig
from penstock.picker.config import PickerConfig
from penstock.queue.config import QueueConfig
from penstock.routing.config import RoutingConfig
from penstock.scheduler.config import SchedulerConfig
from penstock.worker.config import WorkerConfig

TIERS = {
    "edge": EdgeConfig,
    "auth": AuthConfig,
    "queue": QueueConfig,
    "scheduler": SchedulerConfig,
    "worker": WorkerConfig,
    "routing": RoutingConfig,
    "picker": PickerConfig,
}
RENAMED = [(tier, former, name) for tier, config in TIERS.items() for former, name in config.former_names.items()]


@pytest.mark.parametrize(("tier", "former", "name"), RENAMED, ids=lambda each: each)
def test_a_former_name_is_rejected_with_the_present_one(tier, former, name):
    prefix = f"PENSTOCK_{tier.upper()}_"
    with pytest.raises(ConfigError) as failure:
        load(TIERS[tier], tier, {f"{prefix}{former.upper()}": "5"})
    assert str(failure.value) == f"{prefix}{former.upper()} was renamed: use {prefix}{name.upper()}"


def test_every_renamed_setting_has_its_former_name():
    assert len(RENAMED) == 30


@pytest.mark.parametrize("tier", TIERS)
def test_former_names_lead_to_settings_and_are_none_themselves(tier):
    fields = {each.name for each in dataclasses.fields(TIERS[tier])}
    assert set(TIERS[tier].former_names.values()) <= fields
    assert not set(TIERS[tier].former_names) & fields


def test_a_process_does_not_start_with_a_former_name():
    command, environment = [sys.executable, "-m", "penstock.edge"], {"PENSTOCK_EDGE_PATIENCE": "5"}
    ended = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert "PENSTOCK_EDGE_PATIENCE was renamed: use PENSTOCK_EDGE_UPSTREAM_TIMEOUT" in ended.stderr


@pytest.mark.parametrize("config", [ServiceConfig, *TIERS.values()])
def test_every_setting_is_documented_in_one_line_that_ends_as_a_sentence(config):
    for each in dataclasses.fields(config):
        meaning = each.metadata.get("meaning", "")
        assert meaning.endswith("."), f"{config.__name__}.{each.name} needs a meaning: setting(default, meaning)"
        assert "\n" not in meaning


def test_the_configuration_page_is_what_its_generator_writes():
    script = "import runpy; print(runpy.run_path('tools/gen_config_docs')['page'](), end='')"
    written = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout
    page = (REPO / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == written, "a setting changed: run .venv/bin/python tools/gen_config_docs"


def test_every_variable_that_code_reads_is_on_the_configuration_page():
    page = (REPO / "docs" / "configuration.md").read_text(encoding="utf-8")
    read = set()
    for folder in ("services", "tools", "tests"):
        for path in (REPO / folder).rglob("*"):
            if path.is_file() and path.suffix in {"", ".py"}:
                text = path.read_text(encoding="utf-8", errors="ignore")
                read |= set(re.findall(r'os\.environ(?:\.get\(|\[)\s*"(PENSTOCK_[A-Z_]+)"', text))
    assert {"PENSTOCK_API_KEY", "PENSTOCK_STATE", "PENSTOCK_BENCH_CACHE"} <= read
    assert not [each for each in sorted(read) if f"`{each}`" not in page]
