"""The load generator `aiperf`: 10 streamed requests of each kind."""

import json
import os
import tempfile
from pathlib import Path

from client_trials.scripts.steps import Target, expect, run_program, run_steps

_REQUESTS = 10


def _profile(target: Target, kind: str) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}  # it refuses folders
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "--model": target.model,
            "--url": target.base_url.removesuffix("/v1"),
            "--api-key": target.api_key,
            "--endpoint-type": kind,
            "--tokenizer": target.tokenizer,
            "--request-count": _REQUESTS,
            "--concurrency": 2,
            "--synthetic-input-tokens-mean": 16,
            "--output-tokens-mean": 8,
            "--artifact-dir": folder,
            "--ui": "none",
        }
        words = [str(word) for option in options.items() for word in option]
        run_program(
            ["aiperf", "profile", "--streaming", "--no-server-metrics", "--no-gpu-telemetry", *words], variables
        )
        (report,) = Path(folder).rglob("profile_export_aiperf.json")
        figures = json.loads(report.read_text(encoding="utf-8"))
    expect(figures["request_count"]["avg"] == _REQUESTS, figures["request_count"])
    expect(not figures.get("error_request_count", {}).get("avg"), figures.get("error_request_count"))


def chat(target: Target) -> None:
    _profile(target, "chat")


def completions(target: Target) -> None:
    _profile(target, "completions")


if __name__ == "__main__":
    run_steps({"chat": chat, "completions": completions})
