"""The Kubernetes manifests as kubectl renders them, and the settings of the tiers they start."""

import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import yaml

from paths import REPO

KUBECTL = Path(sys.executable).with_name("kubectl")
DEPLOY_FOLDER = REPO / "deploy"
LOCAL_OVERLAY = DEPLOY_FOLDER / "k8s" / "overlays" / "local"
TIERS = ("auth", "edge", "queue", "routing", "scheduler", "worker")


@cache
def render_overlay(folder):
    """The objects of an overlay; shared, so copy before changing."""
    rendered = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True, check=False)
    assert rendered.returncode == 0, rendered.stderr
    return list(yaml.safe_load_all(rendered.stdout))


def config_classes():
    """The class of each tier's settings."""
    return {tier: getattr(import_module(f"penstock.{tier}.config"), f"{tier.title()}Config") for tier in TIERS}


def get_object(objects, kind, name):
    """The one object of that kind whose name is `name`, without a generated suffix."""
    (only,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].split("-")[0] == name]
    return only
