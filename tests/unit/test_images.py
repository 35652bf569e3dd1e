"""The images of deploy/Dockerfile: their users, packages and sizes, and the overlays that use them."""

from importlib.metadata import distribution

import pytest

from image_closure import dockerfile, installed_in
from manifest_check.objects import TIERS, WORKLOAD_KINDS, Manifests
from manifests import DEPLOY_FOLDER, LOCAL_OVERLAY, OVERLAYS, container, pods_of, render_overlay

GPU_OVERLAY = OVERLAYS / "gpu"
MAX_MEGABYTES = {**dict.fromkeys({*TIERS, "picker"} - {"worker"}, 150), "ops": 400}


@pytest.fixture
def rendered():
    return render_overlay(LOCAL_OVERLAY)


def test_every_tier_has_an_image_that_runs_it_and_is_not_root(rendered):
    commands = {each.name: each.command for each in dockerfile().images()}
    for tier in TIERS:
        assert container(pods_of(rendered, tier))["image"] == f"penstock-{tier}:dev"
        assert commands[tier] == ("python", "-m", f"penstock.{tier}")
    for name in commands:
        users = [text for stage in dockerfile().lineage(name) for text in stage.texts("USER")]
        assert users[-1] == "65532:65532"


def test_only_a_worker_image_carries_torch():
    locked = [each for each in dockerfile().images() if each.packages != "vllm-packages"]
    assert [each.name for each in locked if "torch" in installed_in(each)] == ["worker", "worker-gpu"]


def test_an_image_installs_the_locked_releases():
    """The image for vLLM leaves out of the lock the two packages of which vLLM requires other releases."""
    for image in dockerfile().images():
        runs = [text for stage in dockerfile().lineage(image.packages) for text in stage.texts("RUN")]
        constraints = {text.split()[3] for text in runs if text.startswith("pip install")}
        expected = {"tools/requirements.lock"}
        if image.name == "worker-vllm":
            expected |= {"tools/vllm-constraints.txt"}
            assert (
                "RUN grep -vE '^(llguidance|numpy)==' tools/requirements.lock > tools/vllm-constraints.txt"[4:] in runs
            )
        assert constraints == expected


@pytest.mark.parametrize("overlay", [LOCAL_OVERLAY, GPU_OVERLAY], ids=["local", "gpu"])
def test_every_penstock_image_is_made_by_the_dockerfile(overlay):
    named = {container(each)["image"] for each in render_overlay(overlay) if each["kind"] in WORKLOAD_KINDS}
    ours = {each.removeprefix("penstock-").removesuffix(":dev") for each in named if each.startswith("penstock-")}
    tiers = {each.tier for each in Manifests(render_overlay(overlay)).workloads} & set(TIERS)
    assert len(ours) == len(tiers) + 1  # and ops
    assert ours <= {each.name for each in dockerfile().images()}


def test_every_image_is_used_by_an_overlay_or_by_the_endpoint_picker():
    named = {
        container(each)["image"]
        for at in (*OVERLAYS.iterdir(), DEPLOY_FOLDER / "k8s" / "endpoint-picker")
        for each in render_overlay(at)
        if each["kind"] in WORKLOAD_KINDS
    }
    assert {f"penstock-{each.name}:dev" for each in dockerfile().images()} <= named


@pytest.mark.parametrize("name", sorted(MAX_MEGABYTES))
def test_the_packages_of_an_image_without_torch_are_small(name):
    (image,) = [each for each in dockerfile().images() if each.name == name]
    found = [distribution(package) for package in installed_in(image)]
    files = [each.locate_file(file) for each in found for file in each.files]
    size = sum(file.stat().st_size for file in files if file.is_file())
    assert size < MAX_MEGABYTES[name] * 10**6
