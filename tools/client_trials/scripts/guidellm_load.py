"""The load generator `guidellm`: 10 streamed chats."""

import json
import os
import tempfile
from pathlib import Path

from client_trials.scripts.steps import Target, expect, run_program, run_steps

_REQUESTS = 10


def chat(target: Target) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "benchmarks.json"
        backend = f"kind=openai_http,target={target.base_url.removesuffix('/v1')},model={target.model}"
        options = {
            "--backend": f"{backend},api_key={target.api_key}",
            "--data": "kind=synthetic_text,prompt_tokens=16,output_tokens=8",
            "--tokenizer": f"kind=huggingface_auto,model={target.tokenizer}",
            "--profile": "kind=synchronous",
            "--constraint": f"kind=max_requests,count={_REQUESTS}",
            "--output": f"kind=json,path={report}",
        }
        words = [str(word) for option in options.items() for word in option]
        run_program(["guidellm", "run", "--disable-console", *words], os.environ)
        (benchmark,) = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
    counts = benchmark["metrics"]["request_totals"]
    expect(counts["successful"] == _REQUESTS and not counts["errored"], counts)


if __name__ == "__main__":
    run_steps({"chat": chat})
