"""The life of a process: background loops in this process, signals and exit statuses in child processes."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from textwrap import dedent

import pytest

from penstock.chassis.lifecycle import background, request_stop, stop_requested
from penstock.chassis.security.process import new_instance_id
from penstock.local_mesh import pdeathsig_exec

TIER_SCRIPT = """
import asyncio
from penstock.chassis.config import ServiceConfig
from penstock.local_mesh import pdeathsig_exec
from penstock.chassis.lifecycle import background, main, stop_requested
from penstock.chassis.server.server import serving

async def run(config):
    {body}

main(ServiceConfig, "demo", run)
"""

SERVE_SCRIPT = """
    async with serving(config.listen, [], drain_grace=config.drain_grace):
        await stop_requested()
"""

SERVE_IN_A_GROUP = """
    async with background(asyncio.Event().wait()):
        async with serving(config.listen, [], drain_grace=config.drain_grace):
            await stop_requested()
"""


@contextmanager
def process(body, *arguments, **environ):
    source = dedent(TIER_SCRIPT).replace("{body}", body.strip())
    with subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def wait_for(child, event):
    for line in child.stderr:
        found = json.loads(line)
        if found["event"] == event:
            return found
    raise AssertionError(f"the process ended without {event!r}")


def test_a_sigterm_before_the_handlers_exist_is_kept_if_the_parent_blocked_it():
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with process(SERVE_SCRIPT) as child:
            child.terminate()  # it is not yet importing
            assert wait_for(child, "stop_requested")["reason"] == "SIGTERM"
            assert child.wait() == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_the_mesh_starts_only_its_tiers_with_signals_blocked(tmp_path):
    (tmp_path / "held.py").write_text("import signal; print(signal.SIGTERM in signal.pthread_sigmask(0, []))")
    between = (sys.executable, "-I", "-S", pdeathsig_exec.__file__, str(os.getpid()), sys.executable)
    for arguments, held in ((("-m", "held"), "True"), ((str(tmp_path / "held.py"),), "False")):
        ran = subprocess.run([*between, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == held


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_process_and_it_ends_with_0(number):
    with process(SERVE_SCRIPT) as child:
        listening = wait_for(child, "listening")
        assert listening["tier"] == "demo"
        assert listening["instance_id"].startswith("demo-")
        child.send_signal(number)
        assert wait_for(child, "stop_requested")["reason"] == number.name
        wait_for(child, "drained")
        assert child.wait() == 0


def test_a_signal_during_the_start_ends_the_start():
    body = """
    import structlog
    structlog.get_logger().info("loading")
    await asyncio.Event().wait()
    """
    with process(body) as child:
        wait_for(child, "loading")
        child.send_signal(signal.SIGTERM)
        wait_for(child, "stop_requested")
        assert child.wait(timeout=30) == 0


def test_a_crash_is_logged_and_ends_with_1():
    with process("raise RuntimeError('boiler burst')") as child:
        assert "boiler burst" in wait_for(child, "crashed")["exception"]
        assert child.wait() == 1


def test_wrong_settings_end_with_2_and_a_plain_message():
    with process(SERVE_SCRIPT, PENSTOCK_DEMO_DRAIN_GRACE="soon") as child:
        _, errors = child.communicate()
    assert child.returncode == 2
    assert errors == "penstock demo: PENSTOCK_DEMO_DRAIN_GRACE='soon': must be a number\n"


def test_a_metrics_port_that_is_taken_ends_with_2():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with process(SERVE_SCRIPT, PENSTOCK_DEMO_METRICS_LISTEN=address) as child:
            _, errors = child.communicate()
    assert child.returncode == 2
    assert errors.startswith(f"penstock demo: cannot serve metrics on {address}")


@pytest.mark.parametrize("serve", [SERVE_SCRIPT, SERVE_IN_A_GROUP])
def test_a_port_that_is_taken_ends_with_2_and_one_line(serve):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with process(serve, PENSTOCK_DEMO_LISTEN=address) as child:
            _, errors = child.communicate()
    assert child.returncode == 2
    assert errors.splitlines()[-1].startswith(f"penstock demo: cannot listen on {address}; is the port taken?")
    assert "Traceback" not in errors


def test_an_unknown_argument_ends_with_2():
    with process(SERVE_SCRIPT, "--port") as child:
        _, errors = child.communicate()
    assert child.returncode == 2
    assert "--port" in errors


def test_the_settings_are_printed_without_starting():
    with process(SERVE_SCRIPT, "--print-config", PENSTOCK_DEMO_LISTEN="127.0.0.1:1") as child:
        printed, errors = child.communicate()
    assert child.returncode == 0
    assert "PENSTOCK_DEMO_LISTEN=127.0.0.1:1" in printed.splitlines()
    assert errors == ""


async def test_background_loops_end_with_their_block():
    ended = []

    async def loop(name):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async with background(loop("a"), loop("b")):
        await asyncio.sleep(0)
    assert sorted(ended) == ["a", "b"]


async def test_a_crashing_loop_cancels_the_block():
    async def crash():
        raise KeyError("x")

    with pytest.raises(ExceptionGroup) as failure:
        async with background(crash()):
            await asyncio.Event().wait()
    assert [type(each) for each in failure.value.exceptions] == [KeyError]


async def test_the_blocks_own_error_leaves_as_it_is():
    with pytest.raises(KeyError):
        async with background(asyncio.Event().wait()):
            raise KeyError("x")


async def test_a_loop_that_ends_by_itself_leaves_the_block_running():
    async with background(asyncio.sleep(0)):
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_only_the_first_stop_request_counts():
    request_stop("first", 2.0)
    request_stop("second", 9.0)
    stop = await stop_requested()
    assert (stop.reason, stop.grace, stop.forced.is_set()) == ("first", 2.0, False)


def test_instance_ids_are_unique():
    assert len({new_instance_id("queue") for _ in range(100)}) == 100


def test_garbage_collection_does_not_walk_imported_objects():
    body = """
    import gc
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < gc.get_freeze_count() / 10
"""
    with process(body) as child:
        assert child.wait(20) == 0, child.stderr.read()
