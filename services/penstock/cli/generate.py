"""`penstock generate` and `penstock run`: one streamed request, and the time of each tier."""

import time
from dataclasses import dataclass

from rich.markup import escape

from penstock.chassis.durations import seconds_of
from penstock.cli.tables import stderr_console, stdout_console, timeline_table
from penstock.cli.up import mesh_with_status
from penstock.client import Client, Form
from penstock.local_mesh.plan import MeshOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """The options of one request."""

    prompt: str
    model: str = ""
    max_tokens: int | None = None
    temperature: float = 0.0
    seed: int | None = None
    explain: bool = False
    raw: bool = False  # without the chat template
    form: Form | None = None  # of the answer
    failover: tuple[str, ...] = ()  # targets of other regions


async def generate(target: str, api_key: str, options: GenerateOptions, *, as_json: bool) -> None:
    """Stream the answer to stdout; raises PenstockError if the mesh rejects it."""
    async with Client(target, failover=options.failover, api_key=api_key) as client:
        started = time.perf_counter()
        async with client.generate(
            options.prompt if options.raw else [{"role": "user", "content": options.prompt}],
            model=options.model,
            max_output_tokens=options.max_tokens,
            temperature=options.temperature,
            seed=options.seed,
            explain=options.explain,
            form=options.form,
        ) as answer:
            text, ttft_s = "", 0.0
            async for token in answer:
                ttft_s = ttft_s or time.perf_counter() - started
                text += token.text
                if not as_json:
                    stdout_console.print(token.text, end="", markup=False)
        latency_s = time.perf_counter() - started
    finished = answer.finished
    if as_json:
        usage = finished.usage
        stdout_console.print_json(
            data={
                "request_id": answer.accepted.request_id,
                "text": text,
                "prompt_tokens": usage.prompt_tokens,
                "output_tokens": usage.output_tokens,
                "ttft_s": ttft_s,
                "latency_s": latency_s,
                "stages": [
                    {"tier": stage.tier, "name": stage.name, "seconds": seconds_of(stage.length)}
                    for stage in finished.timeline.stages
                ],
                "trace_id": finished.timeline.trace_id,
            }
        )
        return
    stdout_console.print()
    if options.explain:
        stderr_console.print()
        stderr_console.print(timeline_table(finished.timeline, latency_s))
        stderr_console.print(f"trace {finished.timeline.trace_id}  request {escape(answer.accepted.request_id)}")


async def run(options: MeshOptions, prompt: str) -> None:
    """Start a mesh, answer one prompt, show the time of each tier, drain."""
    async with mesh_with_status(options) as mesh:
        stderr_console.print(
            f"[dim]{len(mesh.processes.children)} processes are ready; model {escape(options.model)}[/dim]\n"
        )
        target = mesh.plan.proxy or mesh.plan.grpc
        await generate(target, mesh.api_key, GenerateOptions(prompt=prompt, explain=True), as_json=False)
    stderr_console.print("[dim]drained; every process has ended[/dim]")
