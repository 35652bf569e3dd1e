"""`penstock generate` and `penstock run`: one request, streamed, and where its time went."""

import time
from dataclasses import dataclass

from rich.markup import escape

from penstock.cli.tables import answers, errors, timeline_table
from penstock.cli.up import shown_mesh
from penstock.client import Client
from penstock.local_mesh.plan import MeshOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request as the command line gives it."""

    prompt: str
    model: str = ""
    max_tokens: int | None = None
    temperature: float = 0.0
    seed: int | None = None
    explain: bool = False
    raw: bool = False  # the prompt as it stands, without the chat template


async def generate(target: str, api_key: str, ask: Ask, *, as_json: bool) -> None:
    """Stream the answer to stdout; errors of the mesh are raised as PenstockError."""
    async with Client(target, api_key=api_key) as client:
        started = time.perf_counter()
        async with client.generate(
            ask.prompt if ask.raw else [{"role": "user", "content": ask.prompt}],
            model=ask.model,
            max_output_tokens=ask.max_tokens,
            temperature=ask.temperature,
            seed=ask.seed,
            explain=ask.explain,
        ) as answer:
            text, first = "", 0.0
            async for token in answer:
                first = first or time.perf_counter() - started
                text += token.text
                if not as_json:
                    answers.print(token.text, end="", markup=False)
        seen = time.perf_counter() - started
    finished = answer.finished
    if as_json:
        usage = finished.usage
        answers.print_json(
            data={
                "request_id": answer.accepted.request_id,
                "text": text,
                "prompt_tokens": usage.prompt_tokens,
                "output_tokens": usage.output_tokens,
                "ttft_s": first,
                "latency_s": seen,
                "stages": [
                    {"tier": stage.tier, "name": stage.name, "seconds": stage.length.ToTimedelta().total_seconds()}
                    for stage in finished.timeline.stages
                ],
                "trace_id": finished.timeline.trace_id,
            }
        )
        return
    answers.print()
    if ask.explain:
        errors.print()
        errors.print(timeline_table(finished.timeline, seen))
        errors.print(f"trace {finished.timeline.trace_id}  request {escape(answer.accepted.request_id)}")


async def run(options: MeshOptions, prompt: str) -> None:
    """Start a mesh, answer one prompt, show where the time went, drain."""
    async with shown_mesh(options) as mesh:
        errors.print(f"[dim]{len(mesh.processes.children)} processes up; asking {escape(options.model)}[/dim]\n")
        target = mesh.plan.front or mesh.plan.grpc
        await generate(target, mesh.api_key, Ask(prompt=prompt, explain=True), as_json=False)
    errors.print("[dim]drained; no process is left[/dim]")
