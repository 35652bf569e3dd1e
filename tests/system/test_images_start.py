"""Every image starts with the packages that the Dockerfile installs in it, and with no other package of this machine.

`tools/check_images` installs the packages; these tests hide the others, which takes seconds, not minutes.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from documents import blocks
from image_check.mesh import HEALTH_WATCH, SETTINGS, running_mesh
from image_check.ops import failed_commands
from image_closure import PROCESSES, image_processes, launch
from manifest_check.objects import TIERS
from manifests import LOCAL_OVERLAY, environment, pods_of, render_overlay

TIMEOUT_S = 120.0  # bound of every wait
SCENARIO_TOML = """
duration = 4.0
seed = 3
[slo]
ttft = 0.5
[[tenants]]
name = "chat"
class = "interactive"
arrivals = { rate = 10.0 }
prompt = { tokens = 100 }
output = { tokens = 10 }
"""
HELP_OF_EVERY_COMMAND = """
from click.testing import CliRunner
from penstock.cli.__main__ import cli

def print_help(command, *names):
    result = CliRunner().invoke(cli, [*names, "--help"])
    assert result.exit_code == 0, (names, result.output, result.exception)
    print("penstock", *names)
    for name, each in getattr(command, "commands", {}).items():
        print_help(each, *names, name)

print_help(cli)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def mesh(folder):
    with image_processes(folder, TIMEOUT_S) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def ops(folder):
    started = launch("ops", folder)
    return started._replace(command=started.command[:-1])


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_serves_with_the_packages_of_its_image_alone(mesh, name):
    assert name in mesh.seconds, mesh.failures[name]


def test_the_commands_of_the_ops_image_work_on_the_mesh(mesh, ops):
    assert failed_commands(ops, mesh.addresses) == []


def commands_of_the_operator_pod():
    """Commands that the documents run in the pod, with the names of addresses in the mesh of this test.

    Without `dashboard`, which runs until it is stopped, and `explain`, whose request this mesh has not served.
    """
    text = "\n".join(each.text for each in blocks("console") if each.place == "cluster")
    found = re.findall(r"^\$ kubectl exec .*deployment/operator .*-- penstock ([^#\n]*)", text, re.MULTILINE)
    commands = dict.fromkeys(each.strip() for each in found if not each.startswith(("dashboard", "explain")))
    return [re.sub(r"(\w+):7009", r"{\1_admin}", each) for each in commands]


def test_the_ops_image_serves_operators_by_the_secret_of_the_manifests(ops, folder):
    """Pods and the operator's pod take the token from the Secret; nothing else makes the pod an operator."""
    rendered, processes = render_overlay(LOCAL_OVERLAY), {}
    for tier in (each for each in SETTINGS if each in TIERS):
        token = environment(pods_of(rendered, tier))["PENSTOCK_ADMIN_TOKEN"]
        started = launch(tier, folder)
        started = started._replace(variables={**started.variables, "PENSTOCK_ADMIN_TOKEN": token})
        more = {"ENGINE": "sim"} if tier == "worker" else {}
        processes[tier] = (tier, started, {"ADMIN_LISTEN": "127.0.0.1:0", **more})
    token = environment(pods_of(rendered, "operator"))["PENSTOCK_ADMIN_TOKEN"]
    with_token = ops._replace(variables={**ops.variables, "PENSTOCK_ADMIN_TOKEN": token})
    commands = commands_of_the_operator_pod()
    watch = launch("auth", folder)._replace(command=[sys.executable, str(HEALTH_WATCH)])
    with running_mesh(processes, watch, TIMEOUT_S) as mesh:
        assert not mesh.failures
        assert {each.split()[0] for each in commands} == {"keys", "snapshot", "tenants", "top"}
        assert failed_commands(with_token, mesh.addresses, commands) == []
        (refused,) = failed_commands(ops, mesh.addresses, ["keys list --target {auth_admin}"])
        assert "ADMIN_ONLY" in refused


def test_the_ops_image_explains_every_command(ops):
    done = _python(ops, "-c", HELP_OF_EVERY_COMMAND)
    assert done.returncode == 0, done.stderr
    assert {"penstock", "penstock bench", "penstock top", "penstock keys create"} <= set(done.stdout.splitlines())


def test_the_ops_image_simulates(ops, folder):
    scenario = folder / "small.toml"
    scenario.write_text(SCENARIO_TOML, encoding="utf-8")
    plot = folder / "small.png"
    assert failed_commands(ops, {}, [f"simulate {scenario} --plot {plot}"]) == []
    assert plot.stat().st_size


def test_the_worker_image_can_download_a_model(folder):
    """Its init container runs this import; see the component `model-download`."""
    done = _python(launch("worker", folder), "-c", "from huggingface_hub import snapshot_download as download")
    assert done.returncode == 0, done.stderr


def test_the_picker_image_can_sign_a_certificate(folder):
    """Its manifest has PENSTOCK_PICKER_UNAUTHENTICATED_TLS, and names no certificate."""
    started = launch("picker", folder)
    done = _python(started, "-c", "from penstock.picker.server_tls import self_signed; print(self_signed().expires_at)")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0


def test_a_command_names_the_package_that_the_ops_image_lacks(ops):
    (failure,) = failed_commands(ops, {}, ["simulate --calibrate"])
    assert "this command needs the Python package torch; install penstock[all]" in failure


def test_a_package_that_an_image_lacks_ends_its_process_and_is_named(folder):
    started = launch("auth", folder)
    installed = json.loads(Path(started.variables["ONLY_INSTALLED"]).read_text(encoding="utf-8"))
    installed["files"] = [file for file in installed["files"] if "/orjson/" not in file]
    without = folder / "without.json"
    without.write_text(json.dumps(installed), encoding="utf-8")
    lacking = started._replace(variables={**started.variables, "ONLY_INSTALLED": str(without)})
    watch = started._replace(command=[sys.executable, str(HEALTH_WATCH)])
    with running_mesh({"auth": ("auth", lacking, {})}, watch, TIMEOUT_S) as mesh:
        assert "No module named 'orjson'" in mesh.failures["auth"]


def _python(started, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=started.folder,
        env=started.variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
