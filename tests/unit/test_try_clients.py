"""`tools/try_clients`: the table of clients, outcomes of scripts and the report. No client is installed."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from client_trials.clients import CLIENTS, SCRIPTS, SHARED_SCRIPT
from client_trials.command import print_trials
from client_trials.environments import Launch
from client_trials.mesh import write_tokenizer
from client_trials.scripts.steps import expect, run_steps
from client_trials.trial import Trial, run_trial
from paths import REPO

TARGET = {f"TRIAL_{name}": "x" for name in ("BASE_URL", "API_KEY", "MODEL", "TOKENIZER")}


def trial_of(output, status=0):
    trial = Trial(CLIENTS["openai"])
    trial.read(output, status)
    return trial


def outcome(step, error=""):
    return json.dumps({"step": step, "error": error}) + "\n"


def test_every_script_belongs_to_one_client_and_every_client_has_one():
    found = sorted(path.name for path in SCRIPTS.iterdir() if path.is_file())
    assert found == sorted([SHARED_SCRIPT, *(client.script for client in CLIENTS.values())])


def test_every_client_is_pinned_and_stands_in_the_table_of_the_readme():
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    for name, client in CLIENTS.items():
        assert re.fullmatch(r"\d+(\.\d+)+", client.version), name
        assert f"| {name} {client.version} |" in readme


def test_steps_that_passed_and_failed_are_read_among_other_output():
    trial = trial_of("a warning\n" + outcome("chat") + outcome("tools", "BadRequestError: no"), status=1)
    assert (trial.passed, trial.failed, trial.failure) == (["chat"], {"tools": "BadRequestError: no"}, "")
    assert not trial.is_passed
    assert trial_of(outcome("chat")).is_passed


def test_a_script_that_stops_early_has_not_passed():
    assert "status 1: Traceback" in trial_of("Traceback", status=1).failure
    assert trial_of(outcome("chat"), status=None).failure == "no end within 240 s"
    assert trial_of("").failure == "it ran no step"


def test_a_script_is_stopped_at_its_time_limit(tmp_path):
    client = replace(CLIENTS["openai"], timeout_s=0.1)
    program = "import os, time; print(os.environ['TRIAL_MODEL']); time.sleep(3600)"
    trial = run_trial(client, Launch([sys.executable, "-c", program]), TARGET, tmp_path / "log")
    assert trial.failure == "no end within 0 s"


def test_the_report_has_each_step_and_each_error():
    output = StringIO()
    trials = [
        trial_of(outcome("chat") + outcome("tools", "no [tool]"), status=1),
        Trial(CLIENTS["aiperf"], failure="x"),
    ]
    print_trials(trials, Console(file=output, width=100))
    text = output.getvalue()
    assert re.search(r"openai.*3\.\d+\.\d+.*chat, tools.*failed", text)
    assert "openai, tools: no [tool]" in text
    assert "aiperf: x" in text
    assert [trial.to_json()["result"] for trial in trials] == ["failed", "failed"]


def test_every_step_of_a_script_runs_also_after_one_that_failed(monkeypatch, capsys):
    for name, value in TARGET.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        run_steps({"first": lambda target: expect(False, target.model), "second": lambda _: None})
    trial = trial_of(capsys.readouterr().out, status=end.value.code)
    assert (trial.passed, trial.failed) == (["second"], {"first": "AssertionError: found 'x'"})


def test_the_tokenizer_is_written_as_transformers_reads_it(tmp_path):
    folder = write_tokenizer(tmp_path / "tokenizer")
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "<|im_start|>" in config["chat_template"]
    assert json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]


def test_the_command_describes_itself_and_rejects_other_names():
    command = [sys.executable, str(REPO / "tools" / "try_clients")]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True, timeout=60)
    assert all(name in shown.stdout for name in CLIENTS)
    rejected = subprocess.run([*command, "curl"], capture_output=True, text=True, check=False, timeout=60)
    assert rejected.returncode == 2
    assert "curl is not one of openai," in rejected.stderr
