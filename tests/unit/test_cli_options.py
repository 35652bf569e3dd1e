"""Options are checked before a process starts; an invalid one is reported in one line."""

import click
import pytest
from click.testing import CliRunner

from penstock.cli.__main__ import cli
from penstock.cli.options import LAST_BASE_PORT, ModelFile, mesh_options
from penstock.local_mesh.plan import MeshOptions, plan_mesh


@click.command()
@mesh_options
def show(*, options):
    click.echo(options.model)


def test_a_missing_model_is_rejected_before_a_process_starts():
    result = CliRunner().invoke(show, ["--model", "no-such-model"])
    assert result.exit_code == 2
    assert "no-such-model is no folder, .gguf or .bin file" in result.output
    assert "SmolLM2-135M-Instruct" in result.output


@pytest.mark.parametrize("name", ["model.bin", "model.gguf", "folder"])
def test_existing_model_files_are_accepted_as_given(tmp_path, name):
    path = tmp_path / name
    path.touch() if path.suffix else path.mkdir()
    assert ModelFile().convert(str(path), None, None) == str(path)


def test_the_default_model_is_installed():
    assert CliRunner().invoke(show, []).output == "SmolLM2-135M-Instruct\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--base-port", "99999"], "is not in the range 0<=x<=64000"),
        (["--base-port", "-5"], "is not in the range"),
        (["--set", "BOGUS=1"], "'BOGUS=1' is not PENSTOCK_<TIER>_<NAME>=VALUE"),
        (["--set", "PENSTOCK_LOG_LEVEL=debug"], "into the environment"),
        (["--set", "PENSTOCK_QUEUE_MAX_DEPTH"], "=VALUE"),
        (["--engine", "vllm"], "vLLM runs Hugging Face folders, and SmolLM2-135M-Instruct is not one"),
        (["--auths", "2"], "use --store postgres with several --auths"),
        (["--workers", "0"], "is not in the range 1<=x<=4"),
    ],
)
def test_invalid_mesh_options_are_rejected_before_a_process_starts(options, message):
    result = CliRunner().invoke(show, options)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_the_last_base_port_leaves_room_for_the_largest_mesh(tmp_path):
    largest = MeshOptions(base_port=LAST_BASE_PORT, edges=4, queues=4, schedulers=4, workers=4, auths=4)
    plan = plan_mesh(largest, tmp_path, "key", envoy="envoy")
    ports = [
        int(at.rpartition(":")[2]) for each in plan.processes for at in (each.address, each.http, each.admin) if at
    ]
    assert max(ports) < 2**16


@pytest.mark.parametrize(
    "arguments",
    [
        ["keys", "create", "--ttl", "1e300"],
        ["keys", "create", "--ttl", "nan"],
        ["tenants", "put", "acme", "--requests-per-minute", str(2**32)],
        ["tenants", "put", "acme", "--tokens-per-minute", str(2**64)],
        ["tenants", "put", "acme", "--weight", "nan"],
        ["drain", "worker", "--grace", "1e300"],
        ["bench", "--slo-ttft", "0"],
        ["bench", "--rate", "inf"],
    ],
)
def test_a_number_out_of_range_is_rejected_with_its_option(arguments):
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[-2]}'" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--regions", "eu,eu"], "name 1 to 4 different regions"),
        (["--regions", "eu,US"], "lower-case letters"),
        (["--regions", "eu,us", "--base-port", "64000"], "1200 apart: choose a lower --base-port"),
        (["--region-delay", "-1"], "is not in the range"),
    ],
)
def test_regions_that_cannot_run_are_rejected_before_a_process_starts(arguments, message):
    result = CliRunner().invoke(cli, ["up", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
