"""Starts a mesh of local processes, waits until it serves, and drains it."""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from penstock.chassis.channels import channel
from penstock.local_mesh.operator_channels import process_channel
from penstock.local_mesh.paths import secrets_folder
from penstock.local_mesh.plan import MeshOptions, MeshPlan, ProcessSpec
from penstock.local_mesh.postgres import LocalPostgres
from penstock.local_mesh.processes import (
    POLL_INTERVAL_S,
    ChildFailedError,
    ChildProcess,
    ChildProcesses,
    wait_grpc_through_proxy,
    wait_http_through_proxy,
    wait_listening,
    wait_serving,
)
from penstock.local_mesh.state import MeshState, ProcessState
from penstock.routing.bootstrap import bootstrap
from penstock.v1.inference_pb2 import ListModelsRequest
from penstock.v1.inference_pb2_grpc import InferenceStub

START_TIMEOUT_S = 120.0  # s; enough for a cold disk and a model of some gigabytes

# Envoy first, so that no new request enters; batch before the edges that run its lines; auth last, so that it receives
# every settlement.
DRAIN_ORDER = (("envoy",), ("batch",), ("edge",), ("queue", "scheduler", "routing"), ("worker",), ("auth",))

ProcessStatusFn = Callable[[str, str], None]  # process name and its new status


class LocalMesh:
    """The processes of one mesh, and the addresses and key that callers need."""

    def __init__(
        self,
        options: MeshOptions,
        plan: MeshPlan,
        folder: Path,
        api_key: str,
        postgres: LocalPostgres | None = None,
    ) -> None:
        self.options = options
        self.plan = plan
        self.folder = folder
        self.api_key = api_key
        self.postgres = postgres
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
            region=self.options.region,
            processes=tuple(_process_state(child) for child in self.processes.children if child.is_alive),
        )

    async def start(self, on_status: ProcessStatusFn) -> None:
        """Start all processes; wait until each is healthy, the edge lists a model, and every proxy forwards calls.

        Raises ChildFailedError as soon as a process exits, TimeoutError if the mesh is not ready in time.
        """
        for spec in self.plan.processes:
            if spec.tier == "envoy":
                self._write_bootstrap(spec)
            await self.processes.start(spec)
            on_status(spec.name, "starting")
        await self._wait_started(on_status)

    async def kill(self) -> None:
        """Kill every process at once. A PostgreSQL server of the mesh goes on."""
        await self.processes.kill_all()

    async def restart_all(self, on_status: ProcessStatusFn = lambda _name, _what: None) -> None:
        """Restart all processes after every one has exited; wait and raise as `start` does."""
        for spec in self.plan.processes:
            await self.processes.restart(spec.name)
            on_status(spec.name, "restarting")
        await self._wait_started(on_status)

    async def _wait_started(self, on_status: ProcessStatusFn) -> None:
        waiting = {spec.name for spec in self.plan.processes}

        def on_healthy(name: str, what: str) -> None:
            waiting.discard(name)
            on_status(name, what)

        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._fail_on_exit(self._wait_all_ready(on_healthy))
        except TimeoutError:
            what = f"not healthy: {', '.join(sorted(waiting))}" if waiting else "no model is served through all proxies"
            text = f"the mesh was not ready after {START_TIMEOUT_S:g} s ({what}); its logs are in {self.folder}"
            logs = (f"\n{child.log_end()}" for child in self.processes.children if child.spec.name in waiting)
            raise TimeoutError(text + "".join(logs)) from None

    async def _wait_all_ready(self, on_status: ProcessStatusFn) -> None:
        await asyncio.gather(*(self._wait_healthy(child.spec, on_status) for child in self.processes.children))
        async with channel(self.plan.grpc) as to_edge:
            stub, metadata = InferenceStub(to_edge), self._metadata
            while True:
                response = await stub.ListModels(ListModelsRequest(), metadata=metadata, wait_for_ready=True)
                if response.models:
                    break
                await asyncio.sleep(POLL_INTERVAL_S)
        await asyncio.gather(*map(self._wait_forwarding, self.plan.proxies))

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.api_key}"),)

    async def _wait_forwarding(self, proxy: str) -> None:
        """Wait until the Envoy at `proxy` has its configuration and a healthy edge."""
        await asyncio.gather(wait_grpc_through_proxy(proxy, self._metadata), wait_http_through_proxy(proxy))

    async def _wait_healthy(self, spec: ProcessSpec, on_status: ProcessStatusFn) -> None:
        if spec.tier == "envoy":
            await wait_listening(spec.address)
        else:
            await wait_serving(spec.address, process_channel(spec, self.folder))
        on_status(spec.name, "healthy")

    async def _fail_on_exit(self, work: Coroutine[Any, Any, None]) -> None:
        watch_task = asyncio.ensure_future(self.processes.watch_exits())
        exited, ready = asyncio.ensure_future(self.exits.get()), asyncio.ensure_future(work)
        try:
            await asyncio.wait({exited, ready}, return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                raise ChildFailedError(exited.result().exit_report())
            ready.result()
        finally:
            for each in (watch_task, exited, ready):
                each.cancel()
            await asyncio.gather(watch_task, exited, ready, return_exceptions=True)

    async def restart(
        self, name: str, on_status: ProcessStatusFn = lambda _name, _what: None, *, spec: ProcessSpec | None = None
    ) -> ChildProcess:
        """Restart a process that has exited; wait until it serves, or for an Envoy, until it forwards calls.

        `spec`, with the same name and addresses, changes what it runs.

        Raises ChildFailedError if it exits again, TimeoutError if it is not ready in time.
        """
        child = await self.processes.restart(name, spec)
        on_status(name, "restarting")
        exited = asyncio.ensure_future(child.process.wait())
        ready = asyncio.ensure_future(self._wait_restarted(child.spec, on_status))
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.wait({exited, ready}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise ChildFailedError(child.exit_report())
            ready.result()
        finally:
            for each in (exited, ready):
                each.cancel()
            await asyncio.gather(exited, ready, return_exceptions=True)
        return child

    async def _wait_restarted(self, spec: ProcessSpec, on_status: ProcessStatusFn) -> None:
        await self._wait_healthy(spec, on_status)
        if spec.tier == "envoy":
            await self._wait_forwarding(spec.address)

    def _write_bootstrap(self, spec: ProcessSpec) -> None:
        routing = self.plan.processes_of("routing")[self.plan.processes_of("envoy").index(spec)]
        secrets = "" if self.options.insecure else str(secrets_folder(self.folder, spec.name))
        content = bootstrap(
            routing.address, spec.admin, f"{spec.name}-local", region=self.options.region, secrets=secrets
        )
        (self.folder / f"{spec.name}.json").write_text(json.dumps(content, indent=1))

    async def drain(self, on_status: ProcessStatusFn) -> list[ChildProcess]:
        """Stop tier by tier, each with its drain grace; return the processes that had to be killed."""
        killed: list[ChildProcess] = []
        for tiers in DRAIN_ORDER:
            killed += await self.processes.stop(tiers)
            for child in self.processes.children:
                if child.spec.tier in tiers:
                    on_status(child.spec.name, "killed" if child in killed else "drained")
        return killed


def _process_state(child: ChildProcess) -> ProcessState:
    spec = child.spec
    return ProcessState(
        name=spec.name,
        tier=spec.tier,
        pid=child.process.pid,
        address=spec.address,
        http=spec.http,
        metrics=spec.metrics,
        is_mutual=spec.is_mutual,
        admin=spec.admin_target,
        instance_id=spec.instance_id,
    )
