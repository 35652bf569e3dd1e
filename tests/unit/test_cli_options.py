"""Options are checked before a process is started: what cannot be is told in one line."""

import click
import pytest
from click.testing import CliRunner

from penstock.cli.options import ModelFile, mesh_options


@click.command()
@mesh_options
def show(*, options):
    click.echo(options.model)


def test_a_model_that_is_not_there_is_refused_before_anything_starts():
    told = CliRunner().invoke(show, ["--model", "no-such-model"])
    assert told.exit_code == 2
    assert "no-such-model is no folder, .gguf or .bin file" in told.output
    assert "SmolLM2-135M-Instruct" in told.output


@pytest.mark.parametrize("name", ["model.bin", "model.gguf", "folder"])
def test_files_that_are_there_are_taken_as_they_were_given(tmp_path, name):
    path = tmp_path / name
    path.touch() if path.suffix else path.mkdir()
    assert ModelFile().convert(str(path), None, None) == str(path)


def test_the_default_model_comes_with_the_product():
    assert CliRunner().invoke(show, []).output == "SmolLM2-135M-Instruct\n"
