"""Pools of workers with GPUs: their models, memory, nodes and images, and the download of a model."""

import copy
import json
import os
import subprocess

import pytest

from image_closure import dockerfile
from manifest_check.api_rules import quantity
from manifest_check.objects import Manifests
from manifest_check.rules import manifest_faults
from manifests import DEPLOY_FOLDER, LOCAL_OVERLAY, OVERLAYS, get_object, pods_of, render_overlay
from penstock.worker.config import WorkerConfig

GPU_OVERLAY = OVERLAYS / "gpu"
DOWNLOAD = DEPLOY_FOLDER / "k8s" / "components" / "model-download" / "download.sh"


@pytest.fixture
def pools():
    """Of the overlay with two pools, by name."""
    return {each.name: each for each in Manifests(render_overlay(OVERLAYS / "two-pools")).of_tier("worker")}


def process(workload):
    (only,) = workload.processes
    return only


def settings(workload):
    return Manifests([]).environment(process(workload))


def gpus(workload):
    return int(process(workload).resources("limits")["nvidia.com/gpu"])


def variables(stage):
    """Variables of an image that its last stages set."""
    texts = [text for each in dockerfile().lineage(stage) for text in each.texts("ENV")]
    return dict(pair.split("=", 1) for text in texts for pair in text.split())


def test_each_pool_serves_a_model_of_its_own_on_nodes_of_its_own(pools):
    assert list(pools) == ["worker-chat", "worker-code"]
    models = {
        settings(each).get("PENSTOCK_WORKER_SERVED_NAME", settings(each)["PENSTOCK_WORKER_MODEL"])
        for each in pools.values()
    }
    nodes = {each.pod["nodeSelector"]["nvidia.com/gpu.product"] for each in pools.values()}
    assert len(models) == len(nodes) == 2


def test_pods_of_a_pool_belong_to_no_other(pools):
    chat, code = pools.values()
    assert not Manifests([chat.object]).selected(code.spec["selector"])
    assert not Manifests([code.object]).selected(chat.spec["selector"])


def test_a_pool_has_as_many_gpus_as_vllm_divides_a_model_among(pools):
    code = pools["worker-code"]
    assert json.loads(settings(code)["PENSTOCK_WORKER_VLLM_ARGS"])["tensor_parallel_size"] == gpus(code) == 4
    assert gpus(pools["worker-chat"]) == 1


def test_a_worker_of_vllm_has_shared_memory_within_its_limit(pools):
    code = pools["worker-code"]
    shm = code.volumes[process(code).mounts["/dev/shm"]]["emptyDir"]
    assert shm["medium"] == "Memory"
    assert quantity(shm["sizeLimit"]) < quantity(process(code).resources("limits")["memory"])


def test_a_worker_with_a_gpu_has_more_slots_and_memory_for_its_weights():
    worker, base = (Manifests(render_overlay(at)).of_tier("worker")[0] for at in (GPU_OVERLAY, LOCAL_OVERLAY))
    assert int(settings(worker)["PENSTOCK_WORKER_SLOTS"]) > WorkerConfig.__dataclass_fields__["slots"].default
    assert [process(each).resources("limits")["memory"] for each in (base, worker)] == ["4Gi", "32Gi"]
    assert worker.pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}


@pytest.mark.parametrize("name", ["worker-chat", "worker-code"])
def test_an_image_for_gpus_has_a_compiler_and_volumes_for_what_it_compiles(pools, name):
    image = process(pools[name]).spec["image"].removeprefix("penstock-").removesuffix(":dev")
    of_image = variables(image)
    installed = " ".join(text for stage in dockerfile().lineage(image) for text in stage.texts("RUN")).split()
    for compiler in ("CC", "CXX"):
        assert of_image.get(compiler, "gcc") in installed
    mounts = process(pools[name]).mounts
    for cache in ("TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
        if cache in of_image:
            assert "emptyDir" in pools[name].volumes[mounts[of_image[cache]]]


# The download of a model


def start_download(folder, command, **more):
    return subprocess.Popen(
        ["sh", DOWNLOAD, folder, command],
        env={**os.environ, "MODEL_POLL_S": "0.05", **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def download(folder, command, **more):
    started = start_download(folder, command, **more)
    text, _ = started.communicate(timeout=60)
    return started.returncode, text


def test_a_second_start_reads_nothing_from_outside(tmp_path):
    """The command and the variables are those of the rendered pod; a stub stands for Python."""
    (worker,) = Manifests(render_overlay(GPU_OVERLAY)).of_tier("worker")
    (init,) = [each for each in worker.all_containers if each.name == "download"]
    given = Manifests([]).environment(init)
    assert init.spec["command"][2:] == ["$(MODEL_FOLDER)", "$(MODEL_COMMAND)"]
    assert given["MODEL_FOLDER"] == settings(worker)["PENSTOCK_WORKER_MODEL"]
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$2" >> {tmp_path}/runs\necho weights > model.safetensors\n')
    (tmp_path / "python").chmod(0o755)
    folder, path = tmp_path / "models", f"{tmp_path}:{os.environ['PATH']}"
    for _ in range(2):
        status, text = download(folder, given["MODEL_COMMAND"], PATH=path)
        assert (status, text.splitlines()[-1]) == (0, f"{folder} is complete")
    (run,) = (tmp_path / "runs").read_text().splitlines()
    assert 'download("Qwen/Qwen2.5-7B-Instruct", local_dir=".")' in run
    assert [each.name for each in folder.iterdir()] == ["model.safetensors"]
    assert settings(worker)["HF_HUB_OFFLINE"] == "1"


def test_pods_that_start_at_once_download_once(tmp_path):
    command = f"echo run >> {tmp_path}/runs; sleep 0.3; echo weights > model"
    started = [start_download(tmp_path / "model", command, HOSTNAME=f"worker-{number}") for number in range(4)]
    texts = [each.communicate(timeout=60)[0] for each in started]
    assert [each.returncode for each in started] == [0] * 4
    assert (tmp_path / "runs").read_text() == "run\n"
    assert sum("downloading" in text for text in texts) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model", "runs"]


def test_a_failed_download_leaves_no_folder_and_is_tried_again(tmp_path):
    status, _ = download(tmp_path / "model", "echo part > model; exit 3")
    assert status == 3
    assert list(tmp_path.iterdir()) == []
    status, _ = download(tmp_path / "model", "echo weights > model")
    assert status == 0


def test_the_download_of_a_dead_pod_is_taken_over(tmp_path):
    """Its lock has not been touched for 5 minutes, and its part of the model stays behind."""
    lock, part = tmp_path / "model.lock", tmp_path / "model.part.worker-0"
    lock.mkdir(), part.mkdir()
    os.utime(lock, (0, 0))
    status, text = download(tmp_path / "model", "echo weights > model", HOSTNAME="worker-1")
    assert (status, text.splitlines()[0]) == (0, f"waiting for another pod to download {tmp_path / 'model'}")
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_download_of_another_model_is_a_fault():
    objects = copy.deepcopy(render_overlay(GPU_OVERLAY))
    (init,) = pods_of(objects, "worker")["spec"]["template"]["spec"]["initContainers"]
    (folder,) = [each for each in init["env"] if each["name"] == "MODEL_FOLDER"]
    folder["value"] = "/models/other"
    expected = "download downloads /models/other, but the worker loads /models/Qwen2.5-7B-Instruct"
    assert manifest_faults(objects) == [f"Deployment worker: {expected}"]


def test_workers_of_a_pool_read_one_volume():
    claim = get_object(render_overlay(GPU_OVERLAY), "PersistentVolumeClaim", "models")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
