"""A mesh of local processes, from the first start to the last exit."""

import asyncio
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.auth.keys import key_id_of
from penstock.chassis.channels import channel
from penstock.chassis.config import ConfigError
from penstock.local_mesh.notes import MeshNote, ProcessNote, note_path, state_folder, write_note
from penstock.local_mesh.plan import BASE_PORT, MeshOptions, MeshPlan, ProcessSpec, check_model, plan_mesh
from penstock.local_mesh.processes import Child, ChildFailedError, Processes
from penstock.routing.bootstrap import bootstrap
from penstock.v1.inference_pb2 import ListModelsRequest
from penstock.v1.inference_pb2_grpc import InferenceStub

START_TIMEOUT = 120.0  # s; a cold disk and a model of some gigabytes
MODEL_POLL = 0.1  # s
PORT_SPAN = 1_200  # ports from 7000 up to Envoy's 8081, and some replicas
TRIES = 50

# The front first, so that nothing new comes in; the book-keeper last, so that it hears of everything.
DRAIN_ORDER = (("envoy",), ("edge",), ("queue", "scheduler", "routing"), ("worker",), ("auth",))

Say = Callable[[str, str], None]  # process name, what happened to it
Rewire = Callable[[MeshPlan], Awaitable[MeshPlan]]


class LocalMesh:
    """The processes of one mesh and what callers need to reach it."""

    def __init__(self, options: MeshOptions, plan: MeshPlan, folder: Path, api_key: str) -> None:
        self.options = options
        self.plan = plan
        self.folder = folder
        self.api_key = api_key
        self.deaths: asyncio.Queue[Child] = asyncio.Queue(maxsize=len(plan.processes))
        self.processes = Processes(folder, self.deaths.put_nowait)

    def note(self) -> MeshNote:
        return MeshNote(
            pid=os.getpid(),
            base_port=self.options.base_port,
            grpc=self.plan.grpc,
            http=self.plan.http,
            front=self.plan.front,
            api_key=self.api_key,
            model=self.options.model,
            logs=str(self.folder),
            processes=tuple(_note(child) for child in self.processes.children if child.is_alive),
        )

    async def start(self, say: Say) -> None:
        """Start all, then wait until each is healthy, the edge lists a model, and a proxy passes calls on.

        Raises ChildFailedError as soon as one ends, TimeoutError when something does not get ready.
        """
        for spec in self.plan.processes:
            if spec.tier == "envoy":
                self._write_bootstrap(spec)
            await self.processes.start(spec)
            say(spec.name, "starting")
        async with asyncio.timeout(START_TIMEOUT):
            await self._unless_one_dies(self._all_ready(say))

    async def _all_ready(self, say: Say) -> None:
        await asyncio.gather(*(self._healthy(child.spec, say) for child in self.processes.children))
        async with channel(self.plan.grpc) as to_edge:
            stub, metadata = InferenceStub(to_edge), (("authorization", f"Bearer {self.api_key}"),)
            while True:
                listed = await stub.ListModels(ListModelsRequest(), metadata=metadata, wait_for_ready=True)
                if listed.models:
                    break
                await asyncio.sleep(MODEL_POLL)
        if self.plan.front:
            await asyncio.gather(_passes_grpc(self.plan.front, metadata), _passes_http(self.plan.front))

    async def _healthy(self, spec: ProcessSpec, say: Say) -> None:
        if spec.tier == "envoy":
            await _listening(spec.address)
        else:
            await _serving(spec.address)
        say(spec.name, "healthy")

    async def _unless_one_dies(self, work: Coroutine[Any, Any, None]) -> None:
        watching = asyncio.ensure_future(self.processes.watch())
        death, ready = asyncio.ensure_future(self.deaths.get()), asyncio.ensure_future(work)
        try:
            await asyncio.wait({death, ready}, return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                raise ChildFailedError(death.result().obituary())
            ready.result()
        finally:
            for each in (watching, death, ready):
                each.cancel()
            await asyncio.gather(watching, death, ready, return_exceptions=True)

    async def restart(self, name: str, say: Say = lambda _name, _what: None) -> Child:
        """Start a process that has ended once more and wait until it serves.

        Raises ChildFailedError when it ends again, TimeoutError when it does not get ready.
        """
        child = await self.processes.restart(name)
        say(name, "starting again")
        ended = asyncio.ensure_future(child.process.wait())
        ready = asyncio.ensure_future(self._healthy(child.spec, say))
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await asyncio.wait({ended, ready}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise ChildFailedError(child.obituary())
            ready.result()
        finally:
            for each in (ended, ready):
                each.cancel()
            await asyncio.gather(ended, ready, return_exceptions=True)
        return child

    def _write_bootstrap(self, spec: ProcessSpec) -> None:
        routing = self.plan.of("routing")[0]
        text = json.dumps(bootstrap(routing.address, spec.admin, "envoy-local"), indent=1)
        (self.folder / "envoy.json").write_text(text)

    async def drain(self, say: Say) -> list[Child]:
        """Stop tier by tier, each with its drain grace; returns those that had to be killed."""
        killed: list[Child] = []
        for tiers in DRAIN_ORDER:
            killed += await self.processes.stop(tiers)
            for child in self.processes.children:
                if child.spec.tier in tiers:
                    say(child.spec.name, "killed" if child in killed else "drained")
        return killed


def _note(child: Child) -> ProcessNote:
    spec = child.spec
    return ProcessNote(name=spec.name, tier=spec.tier, pid=child.process.pid, address=spec.address, http=spec.http)


async def _serving(address: str) -> None:
    """Wait until the process at `address` says SERVING. One that ends meanwhile is noticed by who watches it."""
    async with channel(address) as open_channel:
        stub = health_pb2_grpc.HealthStub(open_channel)
        while not await _says_serving(stub):  # noqa: ASYNC110  # what is waited for happens in another process
            await asyncio.sleep(MODEL_POLL)


async def _says_serving(stub: health_pb2_grpc.HealthStub) -> bool:
    """Tell whether health says SERVING before its stream is lost."""
    watch = stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
    with suppress(grpc.aio.AioRpcError):
        async for answer in watch:
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                watch.cancel()
                return True
    return False


async def _listening(address: str) -> None:
    host, _, port = address.rpartition(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            await asyncio.sleep(MODEL_POLL)
        else:
            writer.close()
            return


async def _passes_grpc(front: str, metadata: Sequence[tuple[str, str]]) -> None:
    """Wait until the proxy at `front` has found an edge healthy, and passes gRPC on."""
    async with channel(front) as through_front:
        stub = InferenceStub(through_front)
        while True:
            try:
                await stub.ListModels(ListModelsRequest(), metadata=metadata, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(MODEL_POLL)
            else:
                return


async def _passes_http(front: str) -> None:
    """As `_passes_grpc`: to Envoy the edges' other port is another cluster."""
    async with httpx.AsyncClient(base_url=f"http://{front}") as client:
        while True:
            answer = await client.get("/health")
            if answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                return
            await asyncio.sleep(MODEL_POLL)


def free_base_port() -> int:
    """Return a base port whose whole span is free now; raises OSError when none is found."""
    for _ in range(TRIES):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            base = int(probe.getsockname()[1]) // PORT_SPAN * PORT_SPAN
        if base + PORT_SPAN < 2**16 and all(_is_free(base + port - BASE_PORT) for port in _planned_ports()):
            return base
    message = "no free range of ports on loopback; give one with --base-port"
    raise OSError(message)


def _planned_ports() -> list[int]:
    first = (7001, 7002, 7003, 7004, 7005, 7006, 7080)
    return [*(port + 10 * replica for port in first for replica in range(4)), 8080, 8081]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what a mesh that ended leaves behind is no matter
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _own_key() -> str:
    """Return the key that callers are to have; raises ConfigError where the one that is given is none."""
    given = os.environ.get("PENSTOCK_API_KEY", "")
    if given and not key_id_of(given):
        message = (
            "PENSTOCK_API_KEY must look like pk_ID_SECRET with a secret of 22 letters and digits or more; or unset it"
        )
        raise ConfigError(message)
    return given or f"pk_dev_{secrets.token_hex(16)}"


def _check_ports(plan: MeshPlan) -> None:
    for spec in plan.processes:
        for address in filter(None, (spec.address, spec.http, spec.admin)):
            port = int(address.rpartition(":")[2])
            if not _is_free(port):
                text = f"port {port}, meant for {spec.name}, is taken, perhaps by another mesh"
                raise OSError(f"{text}; end that, or choose others with --base-port (0: free ones)")


def envoy_program() -> str | None:
    """The `envoy` beside this Python (from its wheel) or on PATH; None where there is none."""
    beside = Path(sys.executable).with_name("envoy")
    return str(beside) if beside.exists() else shutil.which("envoy")


def _quiet(_name: str, _what: str) -> None: ...


@asynccontextmanager
async def local_mesh(
    options: MeshOptions, say: Say = _quiet, *, rewire: Rewire | None = None
) -> AsyncIterator[LocalMesh]:
    """Run a mesh for as long as the block lasts. `base_port` 0 chooses free ports; `rewire` changes the plan.

    Raises ConfigError where the model is not installed, OSError where a port is taken, and ChildFailedError or
    TimeoutError when it does not come up; no process is left behind on any path.
    """
    if options.base_port == 0:
        options = replace(options, base_port=free_base_port())
    folder = state_folder() / f"mesh-{options.base_port}"
    api_key = _own_key()
    plan = plan_mesh(options, folder, api_key, envoy=envoy_program(), cores=os.cpu_count() or 1)
    check_model(options.model)
    _check_ports(plan)
    shutil.rmtree(folder, ignore_errors=True)  # of a mesh that ended; one that runs has these ports
    folder.mkdir(mode=0o700)
    plan = await rewire(plan) if rewire else plan
    mesh = LocalMesh(options, plan, folder, api_key)
    try:
        await mesh.start(say)
        write_note(mesh.note())
        yield mesh
        await mesh.drain(say)
    finally:
        note_path(options.base_port).unlink(missing_ok=True)
        await mesh.processes.kill_all()
