"""The Kubernetes manifests as kubectl renders them, and places in them that tests read and change."""

from functools import cache

from manifest_check.command import render
from manifest_check.objects import Manifests, Workload
from paths import REPO

DEPLOY_FOLDER = REPO / "deploy"
OVERLAYS = DEPLOY_FOLDER / "k8s" / "overlays"
LOCAL_OVERLAY = OVERLAYS / "local"


@cache
def render_overlay(folder):
    """The objects of an overlay; shared, so copy before changing."""
    return render(folder)


def get_object(objects, kind, name):
    """The one object of that kind whose name is `name`, without a generated suffix."""
    (only,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].split("-")[0] == name]
    return only


def pods_of(objects, tier):
    """The only workload of a tier, or of `envoy` or `operator`."""
    (only,) = Manifests(objects).of_tier(tier)
    return only.object


def container(workload):
    """The container that runs the process of the tier."""
    (only,) = Workload(workload).processes
    return only.spec


def environment(workload):
    (only,) = Workload(workload).processes
    return Manifests([workload]).environment(only)


def ports(workload):
    return Workload(workload).ports
