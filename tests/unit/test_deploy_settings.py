"""What is deployed names settings that exist: manifests of every component, comments, images and examples."""

import dataclasses
import re

import pytest

from manifest_check.objects import TIERS
from manifest_check.tiers import config_class
from manifests import DEPLOY_FOLDER, render_overlay
from paths import REPO
from penstock.chassis.config import variable_prefix
from penstock.picker.config import PickerConfig

NAME = re.compile(r"PENSTOCK_[A-Z0-9_]+")
FOLDERS = (DEPLOY_FOLDER, REPO / "examples" / "kubernetes")
FILES = sorted(path for folder in FOLDERS for path in folder.rglob("*") if path.is_file())


def settings_of(tier, config_type):
    """Names of the variables that a process of a tier reads."""
    fields = dataclasses.fields(config_type)
    own = {variable_prefix(tier) + each.name.upper() for each in fields}
    return own | {each.metadata["fleet"] for each in fields if each.metadata["fleet"]}


OF_PICKER = settings_of("picker", PickerConfig)
ALL = OF_PICKER.union(*(settings_of(tier, config_class(tier)) for tier in TIERS))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPO)))
def test_a_deployed_file_names_settings_that_exist(path):
    assert set(NAME.findall(path.read_text(encoding="utf-8"))) <= ALL


def test_the_manifests_name_settings_of_many_tiers():
    """The names above are found at all."""
    found = {name for path in FILES for name in NAME.findall(path.read_text(encoding="utf-8"))}
    assert all(any(name.startswith(variable_prefix(tier)) for name in found) for tier in (*TIERS, "picker"))


def test_the_picker_reads_each_of_its_variables():
    """Those of the tiers of a mesh are checked by the rules of manifests."""
    objects = render_overlay(DEPLOY_FOLDER / "k8s" / "endpoint-picker")
    (deployment,) = [each for each in objects if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {each["name"] for each in container["env"]} <= OF_PICKER
