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

from penstock.auth.identity.keys import key_id_of
from penstock.chassis.channels import channel
from penstock.chassis.config import ConfigError
from penstock.local_mesh.plan import BASE_PORT, MeshOptions, MeshPlan, ProcessSpec, check_model, plan_mesh
from penstock.local_mesh.processes import ChildFailedError, ChildProcess, ChildProcesses
from penstock.local_mesh.state import MeshState, ProcessState, state_folder, state_path, write_state
from penstock.routing.bootstrap import bootstrap
from penstock.v1.inference_pb2 import ListModelsRequest
from penstock.v1.inference_pb2_grpc import InferenceStub

START_TIMEOUT_S = 120.0  # s; a cold disk and a model of some gigabytes
POLL_INTERVAL_S = 0.1  # s
PORT_SPAN = 1_200  # ports from 7000 up to Envoy's 8081, and some replicas
PORT_ATTEMPTS = 50

# The front first, so that nothing new comes in; the book-keeper last, so that it hears of everything.
DRAIN_ORDER = (("envoy",), ("edge",), ("queue", "scheduler", "routing"), ("worker",), ("auth",))

ProcessStatusFn = Callable[[str, str], None]  # process name, what happened to it
TransformPlan = Callable[[MeshPlan], Awaitable[MeshPlan]]


class LocalMesh:
    """The processes of one mesh and what callers need to reach it."""

    def __init__(self, options: MeshOptions, plan: MeshPlan, folder: Path, api_key: str) -> None:
        self.options = options
        self.plan = plan
        self.folder = folder
        self.api_key = api_key
        self.exits: asyncio.Queue[ChildProcess] = asyncio.Queue(maxsize=len(plan.processes))
        self.processes = ChildProcesses(folder, self.exits.put_nowait)

    def state(self) -> MeshState:
        return MeshState(
            pid=os.getpid(),
            base_port=self.options.base_port,
            grpc=self.plan.grpc,
            http=self.plan.http,
            proxy=self.plan.proxy,
            api_key=self.api_key,
            model=self.options.model,
            log_folder=str(self.folder),
            processes=tuple(_process_state(child) for child in self.processes.children if child.is_alive),
        )

    async def start(self, on_status: ProcessStatusFn) -> None:
        """Start all, then wait until each is healthy, the edge lists a model, and a proxy passes calls on.

        Raises ChildFailedError as soon as one ends, TimeoutError when something does not get ready.
        """
        for spec in self.plan.processes:
            if spec.tier == "envoy":
                self._write_bootstrap(spec)
            await self.processes.start(spec)
            on_status(spec.name, "starting")
        async with asyncio.timeout(START_TIMEOUT_S):
            await self._fail_on_exit(self._wait_all_ready(on_status))

    async def _wait_all_ready(self, on_status: ProcessStatusFn) -> None:
        await asyncio.gather(*(self._wait_healthy(child.spec, on_status) for child in self.processes.children))
        async with channel(self.plan.grpc) as to_edge:
            stub, metadata = InferenceStub(to_edge), self._metadata
            while True:
                listed = await stub.ListModels(ListModelsRequest(), metadata=metadata, wait_for_ready=True)
                if listed.models:
                    break
                await asyncio.sleep(POLL_INTERVAL_S)
        await asyncio.gather(*map(self._wait_forwarding, self.plan.proxies))

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.api_key}"),)

    async def _wait_forwarding(self, proxy: str) -> None:
        """Wait until the Envoy at `proxy` has its configuration, and an edge that answers."""
        await asyncio.gather(_wait_grpc_through_proxy(proxy, self._metadata), _wait_http_through_proxy(proxy))

    async def _wait_healthy(self, spec: ProcessSpec, on_status: ProcessStatusFn) -> None:
        if spec.tier == "envoy":
            await _wait_listening(spec.address)
        else:
            await _wait_serving(spec.address)
        on_status(spec.name, "healthy")

    async def _fail_on_exit(self, work: Coroutine[Any, Any, None]) -> None:
        watching = asyncio.ensure_future(self.processes.watch_exits())
        death, ready = asyncio.ensure_future(self.exits.get()), asyncio.ensure_future(work)
        try:
            await asyncio.wait({death, ready}, return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                raise ChildFailedError(death.result().exit_report())
            ready.result()
        finally:
            for each in (watching, death, ready):
                each.cancel()
            await asyncio.gather(watching, death, ready, return_exceptions=True)

    async def restart(self, name: str, on_status: ProcessStatusFn = lambda _name, _what: None) -> ChildProcess:
        """Start a process that has ended once more and wait until it serves; an Envoy, until it passes calls on.

        Raises ChildFailedError when it ends again, TimeoutError when it does not get ready.
        """
        child = await self.processes.restart(name)
        on_status(name, "starting again")
        ended = asyncio.ensure_future(child.process.wait())
        ready = asyncio.ensure_future(self._serves_again(child.spec, on_status))
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.wait({ended, ready}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise ChildFailedError(child.exit_report())
            ready.result()
        finally:
            for each in (ended, ready):
                each.cancel()
            await asyncio.gather(ended, ready, return_exceptions=True)
        return child

    async def _serves_again(self, spec: ProcessSpec, on_status: ProcessStatusFn) -> None:
        await self._wait_healthy(spec, on_status)
        if spec.tier == "envoy":
            await self._wait_forwarding(spec.address)

    def _write_bootstrap(self, spec: ProcessSpec) -> None:
        routing = self.plan.processes_of("routing")[self.plan.processes_of("envoy").index(spec)]
        text = json.dumps(bootstrap(routing.address, spec.admin, f"{spec.name}-local"), indent=1)
        (self.folder / f"{spec.name}.json").write_text(text)

    async def drain(self, on_status: ProcessStatusFn) -> list[ChildProcess]:
        """Stop tier by tier, each with its drain grace; returns those that had to be killed."""
        killed: list[ChildProcess] = []
        for tiers in DRAIN_ORDER:
            killed += await self.processes.stop(tiers)
            for child in self.processes.children:
                if child.spec.tier in tiers:
                    on_status(child.spec.name, "killed" if child in killed else "drained")
        return killed


def _process_state(child: ChildProcess) -> ProcessState:
    spec = child.spec
    return ProcessState(name=spec.name, tier=spec.tier, pid=child.process.pid, address=spec.address, http=spec.http)


async def _wait_serving(address: str) -> None:
    """Wait until the process at `address` says SERVING. One that ends meanwhile is noticed by who watches it."""
    async with channel(address) as open_channel:
        stub = health_pb2_grpc.HealthStub(open_channel)
        while not await _is_serving(stub):  # noqa: ASYNC110  # what is waited for happens in another process
            await asyncio.sleep(POLL_INTERVAL_S)


async def _is_serving(stub: health_pb2_grpc.HealthStub) -> bool:
    """Tell whether health says SERVING before its stream is lost."""
    watch = stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
    with suppress(grpc.aio.AioRpcError):
        async for answer in watch:
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                watch.cancel()
                return True
    return False


async def _wait_listening(address: str) -> None:
    host, _, port = address.rpartition(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            await asyncio.sleep(POLL_INTERVAL_S)
        else:
            writer.close()
            return


async def _wait_grpc_through_proxy(proxy: str, metadata: Sequence[tuple[str, str]]) -> None:
    """Wait until the proxy at `front` has found an edge healthy, and passes gRPC on."""
    async with channel(proxy) as through_front:
        stub = InferenceStub(through_front)
        while True:
            try:
                await stub.ListModels(ListModelsRequest(), metadata=metadata, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(POLL_INTERVAL_S)
            else:
                return


async def _wait_http_through_proxy(proxy: str) -> None:
    """As `_passes_grpc`: to Envoy the edges' other port is another cluster."""
    async with httpx.AsyncClient(base_url=f"http://{proxy}") as client:
        while True:
            answer = await client.get("/health")
            if answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                return
            await asyncio.sleep(POLL_INTERVAL_S)


def free_base_port() -> int:
    """Return a base port whose whole span is free now; raises OSError when none is found."""
    for _ in range(PORT_ATTEMPTS):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            base = int(probe.getsockname()[1]) // PORT_SPAN * PORT_SPAN
        if base + PORT_SPAN < 2**16 and all(_is_free(base + port - BASE_PORT) for port in _planned_ports()):
            return base
    message = "no free range of ports on loopback; give one with --base-port"
    raise OSError(message)


def _planned_ports() -> list[int]:
    first = (7001, 7002, 7003, 7004, 7005, 7006, 7080, 8080, 8081)
    return [port + 10 * replica for port in first for replica in range(4)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what a mesh that ended leaves behind is no matter
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _api_key() -> str:
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


def _ignore_status(_name: str, _what: str) -> None: ...


@asynccontextmanager
async def local_mesh(
    options: MeshOptions, on_status: ProcessStatusFn = _ignore_status, *, transform_plan: TransformPlan | None = None
) -> AsyncIterator[LocalMesh]:
    """Run a mesh for as long as the block lasts. `base_port` 0 chooses free ports; `rewire` changes the plan.

    Raises ConfigError where the model is not installed, OSError where a port is taken, and ChildFailedError or
    TimeoutError when it does not come up; no process is left behind on any path.
    """
    if options.base_port == 0:
        options = replace(options, base_port=free_base_port())
    folder = state_folder() / f"mesh-{options.base_port}"
    api_key = _api_key()
    plan = plan_mesh(options, folder, api_key, envoy=envoy_program(), cores=os.cpu_count() or 1)
    check_model(options.model)
    _check_ports(plan)
    shutil.rmtree(folder, ignore_errors=True)  # of a mesh that ended; one that runs has these ports
    folder.mkdir(mode=0o700)
    plan = await transform_plan(plan) if transform_plan else plan
    mesh = LocalMesh(options, plan, folder, api_key)
    try:
        await mesh.start(on_status)
        write_state(mesh.state())
        yield mesh
        await mesh.drain(on_status)
    finally:
        state_path(options.base_port).unlink(missing_ok=True)
        await mesh.processes.kill_all()
