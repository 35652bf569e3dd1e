"""`penstock top` before real shards and a real scheduler, with an edge and a worker that the test drives."""

import asyncio
import fcntl
import io
import json
import os
import re
import struct
import sys
import termios
import time
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import NamedTuple

import pytest
from rich.console import Console

from dispatch_mesh import book_of
from operators import operators_at_socket
from penstock.chassis.errors import Unavailable
from penstock.chassis.lifecycle import background
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import HIGHEST_VERSION
from penstock.cli.top import command
from penstock.cli.top.poll import open_poller
from penstock.mesh.v1.queue_pb2_grpc import add_QueueServiceServicer_to_server
from penstock.mesh.v1.scheduler_pb2 import LoadReport
from penstock.mesh.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from penstock.queue import snapshot as queue_snapshot
from penstock.queue.service import QueueService
from penstock.scheduler import snapshot as scheduler_snapshot
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.leases import LeaseBook
from penstock.scheduler.service import SchedulerService
from penstock.v1.stream_pb2 import Hello
from queue_streams import TIMEOUT_S, edge_at
from queue_streams import ticket as ticket_of_model
from scheduler_streams import worker_at

TERMINAL_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
DIGEST = "d"


def ticket(ticket_id, **fields):
    return ticket_of_model(ticket_id, **{"model": f"m@{DIGEST}", **fields})


@asynccontextmanager
async def shard_at(name):
    book = book_of()
    service = QueueService(book, Hello(protocol=HIGHEST_VERSION, instance_id=name, tier="queue"), now=time.time)
    admin = AdminService("queue", name, service.figures, lambda: queue_snapshot.tables(book))
    registration = add_QueueServiceServicer_to_server, service
    with operators_at_socket() as operators:
        async with (
            serving("127.0.0.1:0", [registration], admin=admin, operators=operators, drain_grace=0.5) as server,
            background(service.tick()),
        ):
            yield server
            service.drain()


@asynccontextmanager
async def scheduler_of(*queues):
    dispatcher = Dispatcher(leases=LeaseBook(ttl=5.0, prefix="s"), look_ahead=0)
    service = SchedulerService(dispatcher, queues, Hello(protocol=HIGHEST_VERSION, instance_id="s", tier="scheduler"))
    tables = lambda: scheduler_snapshot.tables(dispatcher.fleet)  # noqa: E731  # as in the composition root
    admin = AdminService("scheduler", "scheduler-1", service.figures, tables)
    registration = add_SchedulerServiceServicer_to_server, service
    with operators_at_socket() as operators:
        async with (
            serving("127.0.0.1:0", [registration], admin=admin, operators=operators, drain_grace=0.5) as server,
            background(service.run(), service.tick()),
        ):
            yield server


class Busy(NamedTuple):
    """The Admin addresses of two shards and of their scheduler, an edge, and the scheduler's own address."""

    admin_addresses: list[str]
    edge: object
    scheduler: str


@asynccontextmanager
async def busy_mesh():
    """Two shards and a worker with two slots: of three tickets on the first shard, two are leased and one waits."""
    async with (
        shard_at("queue-1") as first,
        shard_at("queue-2") as second,
        scheduler_of(first.address, second.address) as scheduler,
        worker_at(scheduler.address) as worker,
        edge_at(first.address) as edge,
    ):
        while not (await edge.receive("catalog")).entries:
            pass
        worker.send(load_report=LoadReport(running=2, tokens_per_second=40.0))
        edge.enqueue(*(ticket(f"t{number}") for number in range(3)))
        for _ in range(2):
            await edge.receive("leased")
        yield Busy([each.admin_address for each in (first, second, scheduler)], edge, scheduler.address)


@pytest.fixture
def screen(monkeypatch):
    """The output of the command as plain text, without a terminal."""
    return Screen(monkeypatch, is_terminal=False)


class Screen:
    def __init__(self, monkeypatch, *, is_terminal):
        self._page = io.StringIO()
        style = {"color_system": None, "force_terminal": is_terminal, "_environ": {"TERM": "xterm"}}
        monkeypatch.setattr(command, "stdout_console", Console(file=self._page, width=160, height=60, **style))

    @property
    def text(self):
        return TERMINAL_CONTROL.sub("", self._page.getvalue())

    async def top(self, targets, **options):
        await command.top({}, targets, interval=0.1, **{"once": True, "as_json": False} | options)
        return self.text


async def test_json_is_one_object_with_waiting_and_running_requests(screen):
    async with busy_mesh() as (addresses, _, _):
        frame = json.loads(await screen.top(addresses, as_json=True))
        shards = {row["shard"]: row for row in frame["shards"]}
        assert (shards["queue-1"]["waiting"], shards["queue-1"]["running"]) == (1, 2)
        assert "queue-2" not in shards or shards["queue-2"]["waiting"] == 0
        tenants = [(row["tenant_id"], row["class"], row["waiting"], row["running"]) for row in frame["tenants"]]
        assert tenants == [("acme", "standard", 1, 2)]
        (row,) = frame["workers"]
        assert (row["worker"], row["leases"], row["running"], row["batch_fill"]) == ("w1", 2, 2, 1.0)
        assert row["free_kv_blocks"] == 64 - 2 * 7
        assert {row["tier"] for row in frame["processes"]} == {"queue", "scheduler"}


async def test_versions_of_a_model_and_releases_of_processes_are_shown(monkeypatch):
    digests = "0123456789abcdef", "fedcba9876543210"

    async def frame(addresses):
        return json.loads(await Screen(monkeypatch, is_terminal=False).top(addresses, as_json=True))

    async with (
        busy_mesh() as (addresses, _, scheduler),
        worker_at(scheduler, "w2", card_digest=digests[0]),
        worker_at(scheduler, "w3", card_digest=digests[1]),
        asyncio.timeout(TIMEOUT_S),
    ):
        while len((shown := await frame(addresses))["models"]) < 3:
            pass
        models = {(row["model"], row["card_digest"]): row["workers"] for row in shown["models"]}
        assert models == {("m", DIGEST): 1, ("m", digests[0]): 1, ("m", digests[1]): 1}
        assert {row["release"] for row in shown["processes"]} == {version("penstock")}
        text = await Screen(monkeypatch, is_terminal=False).top(addresses)
        assert "01234567 " in text
        assert digests[0] not in text
        assert version("penstock") in text


async def test_once_prints_one_frame(screen):
    async with busy_mesh() as (addresses, edge, _):
        edge.enqueue(ticket("late", time_left_nanos=1))
        await edge.receive("shed")
        text = await screen.top(addresses)
        assert text.count("tokens/s while busy") == 1
        for shown in ("1 waiting", "2 running of 2 slots", "acme", "DEADLINE", "██████████"):
            assert shown in text


async def test_an_unreachable_process_is_shown_and_an_unreachable_mesh_is_an_error(screen):
    async with busy_mesh() as (addresses, _, _):
        unreachable = "127.0.0.1:1"
        assert "CONNECTION_LOST" in await screen.top([*addresses, unreachable])
        with pytest.raises(Unavailable):
            await screen.top([unreachable])


async def test_a_process_that_has_left_the_name_is_no_longer_polled():
    async with busy_mesh() as (addresses, _, _), open_poller({addresses[0]: "shard"}, addresses[1:]) as poller:
        assert [each.name for each in await poller.poll()] == ["shard", *addresses[1:]]
        await poller.set_addresses([addresses[0], addresses[2]])
        assert [each.name for each in await poller.poll()] == ["shard", addresses[2]]
        await poller.set_addresses(addresses)
        assert all(each.snapshot for each in await poller.poll())


async def test_a_terminal_is_shown_the_mesh_as_it_changes(monkeypatch):
    screen = Screen(monkeypatch, is_terminal=True)
    async with busy_mesh() as (addresses, edge, _):
        looking = asyncio.create_task(screen.top(addresses, once=False))
        await until_shown(screen, looking, "1 waiting")
        edge.withdraw("t2")
        await edge.receive("withdrawn")
        await until_shown(screen, looking, "0 waiting")
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def test_keys_of_a_terminal_change_the_table_and_q_restores_the_terminal():
    main, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(terminal)
    async with busy_mesh() as (addresses, _, _), asyncio.timeout(TIMEOUT_S):
        targets = [word for each in addresses for word in ("--target", each)]
        command_line = [sys.executable, "-m", "penstock.cli", "top", "--interval", "0.1", *targets]
        environment = {**os.environ, "TERM": "xterm"}
        viewer = await asyncio.create_subprocess_exec(
            *command_line, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
        )
        await until_read(main, "[tiers]")
        os.write(main, b"4")
        assert "w1" in await until_read(main, "[workers]")
        os.write(main, b"\x1b[Z")
        await until_read(main, "[models]")
        os.write(main, b"q")
        with lost_output(main):
            assert await viewer.wait() == 0
        assert termios.tcgetattr(terminal) == before
    os.close(terminal)
    os.close(main)


async def until_read(terminal, text):
    """Return what the program has written when `text` is a part of it."""
    loop, read = asyncio.get_running_loop(), ""
    while text not in read:
        readable = asyncio.Event()
        loop.add_reader(terminal, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(terminal)
        read += os.read(terminal, 65_536).decode(errors="ignore")
    return read


@contextmanager
def lost_output(terminal):
    """Read and drop what the program writes during the block, so that it never waits for a reader."""
    loop = asyncio.get_running_loop()
    loop.add_reader(terminal, lambda: os.read(terminal, 65_536))
    try:
        yield
    finally:
        loop.remove_reader(terminal)


async def until_shown(screen, looking, text):
    async with asyncio.timeout(TIMEOUT_S):
        while text not in screen.text:
            assert not looking.done(), looking
            await asyncio.sleep(0)
