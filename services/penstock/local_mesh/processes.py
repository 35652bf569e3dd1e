"""Child processes: each with a log, awaited until it serves, watched for exits, drained in order, killed in the end."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.chassis.channels import channel
from penstock.local_mesh import pdeathsig_exec as child_program
from penstock.local_mesh.plan import ProcessSpec
from penstock.v1.inference_pb2 import ListModelsRequest
from penstock.v1.inference_pb2_grpc import InferenceStub

POLL_INTERVAL_S = 0.1  # s


async def wait_serving(address: str, to_process: grpc.aio.Channel | None = None) -> None:
    """Wait until the health of the process at `address` is SERVING. It does not detect that the process exits.

    `to_process` is closed at the end; without it the connection is in plaintext.
    """
    async with to_process or channel(address) as open_channel:
        stub = health_pb2_grpc.HealthStub(open_channel)
        while not await _is_serving(stub):  # noqa: ASYNC110  # the event happens in another process
            await asyncio.sleep(POLL_INTERVAL_S)


async def _is_serving(stub: health_pb2_grpc.HealthStub) -> bool:
    """Whether the health stream reports SERVING before it ends."""
    watch = stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
    with suppress(grpc.aio.AioRpcError):
        # An abandoned `async for` would keep the connection open until the next garbage collection.
        while (response := await watch.read()) is not grpc.aio.EOF:
            if response.status == health_pb2.HealthCheckResponse.SERVING:
                watch.cancel()
                return True
    return False


async def wait_listening(address: str) -> None:
    host, _, port = address.rpartition(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            await asyncio.sleep(POLL_INTERVAL_S)
        else:
            writer.close()
            return


async def wait_grpc_through_proxy(proxy: str, metadata: Sequence[tuple[str, str]]) -> None:
    """Wait until the proxy has a healthy edge and forwards gRPC."""
    async with channel(proxy) as to_proxy:
        stub = InferenceStub(to_proxy)
        while True:
            try:
                await stub.ListModels(ListModelsRequest(), metadata=metadata, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(POLL_INTERVAL_S)
            else:
                return


async def wait_http_through_proxy(proxy: str) -> None:
    """Wait until the proxy forwards HTTP, whose port is a cluster of its own in Envoy."""
    async with httpx.AsyncClient(base_url=f"http://{proxy}") as client:
        while True:
            response = await client.get("/health")
            if response.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                return
            await asyncio.sleep(POLL_INTERVAL_S)


LOG_TAIL_LINES = 15
KILL_TIMEOUT_S = 25.0  # s after SIGTERM; above the tiers' own drain grace of 20 s


class ChildFailedError(Exception):
    """A process of the mesh exited unexpectedly; the message contains the end of its log."""


@dataclass
class ChildProcess:
    """One running process of the mesh."""

    spec: ProcessSpec
    process: asyncio.subprocess.Process
    log: Path

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    def exit_report(self) -> str:
        return f"{self.spec.instance_id} ended with {_describe_exit(self.process.returncode)}; {self.log_end()}"

    def log_end(self) -> str:
        """Return the path and the last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        tail = "\n".join(f"  | {line}" for line in lines)
        return f"the end of {self.log}:\n{tail}"


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


class ChildProcesses:
    """The children of one mesh. `on_exit` is called for each that exits without being stopped."""

    def __init__(self, logs: Path, on_exit: Callable[[ChildProcess], None]) -> None:
        self.children: list[ChildProcess] = []
        self._logs = logs
        self._on_exit = on_exit
        self._stopping: set[str] = set()

    async def start(self, spec: ProcessSpec) -> ChildProcess:
        log = self._logs / f"{spec.name}.log"
        with log.open("ab") as stderr:  # a restarted process appends to its log
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", child_program.__file__, str(os.getpid()), *spec.argv),
                env={**os.environ, **spec.environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C reaches only this process, which drains the children in order
            )
        child = ChildProcess(spec, process, log)
        self.children.append(child)
        return child

    def named(self, name: str) -> ChildProcess:
        """Raises KeyError if there is no such process."""
        for child in self.children:
            if child.spec.name == name:
                return child
        raise KeyError(name)

    async def restart(self, name: str, spec: ProcessSpec | None = None) -> ChildProcess:
        """Restart a process that has exited, with the same place in the list; `spec` changes what it runs."""
        ended = self.named(name)
        await ended.process.wait()
        place = self.children.index(ended)
        self.children.remove(ended)
        self._stopping.discard(name)
        child = await self.start(spec or ended.spec)
        self.children.insert(place, self.children.pop())
        return child

    async def watch_exits(self) -> None:
        """Report exits until cancelled or until all have exited."""
        await asyncio.gather(*(self._watch_one(child) for child in self.children))

    async def _watch_one(self, child: ChildProcess) -> None:
        await child.process.wait()
        if child.spec.name not in self._stopping:
            self._on_exit(child)

    async def stop(self, tiers: Sequence[str]) -> list[ChildProcess]:
        """Send SIGTERM to the processes of `tiers`, wait for their drain, kill the rest; return the killed ones."""
        chosen = [child for child in self.children if child.spec.tier in tiers]
        self._stopping.update(child.spec.name for child in chosen)
        return [
            child
            for child, killed in zip(chosen, await asyncio.gather(*map(self._stop_one, chosen)), strict=True)
            if killed
        ]

    async def _stop_one(self, child: ChildProcess) -> bool:
        with suppress(ProcessLookupError):
            child.process.terminate()
        try:
            async with asyncio.timeout(KILL_TIMEOUT_S):
                await child.process.wait()
        except TimeoutError:
            child.process.kill()
            await child.process.wait()
            return True
        return False

    async def kill_all(self) -> None:
        for child in self.children:
            with suppress(ProcessLookupError):
                child.process.kill()
        await asyncio.gather(*(child.process.wait() for child in self.children))
