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
from contextlib import contextmanager
from importlib.metadata import version

import pytest
from rich.console import Console

from busy_mesh import DIGEST, busy_mesh, ticket
from penstock.chassis.errors import Unavailable
from penstock.cli.top import command
from penstock.cli.top.poll import open_poller
from queue_streams import TIMEOUT_S
from scheduler_streams import worker_at

TERMINAL_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


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


@pytest.mark.parametrize("ends_by", ["key", "signal"])
async def test_keys_of_a_terminal_change_the_table_and_the_end_restores_the_terminal(ends_by):
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
        await until_read(main, "[workers]", "w1")
        os.write(main, b"\x1b[Z")
        await until_read(main, "[models]")
        if ends_by == "key":
            os.write(main, b"q")
        else:
            viewer.terminate()
        with lost_output(main):
            assert await viewer.wait() == 0
        assert termios.tcgetattr(terminal) == before
    os.close(terminal)
    os.close(main)


async def until_read(terminal, *texts):
    """Return when the program has written all texts, in this order. A read may end within a frame."""
    loop, read, shown = asyncio.get_running_loop(), "", re.compile(".*".join(map(re.escape, texts)), re.DOTALL)
    while not shown.search(read):
        readable = asyncio.Event()
        loop.add_reader(terminal, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(terminal)
        read += os.read(terminal, 65_536).decode(errors="ignore")


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
