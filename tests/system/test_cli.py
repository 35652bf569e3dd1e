"""The `penstock` command at a terminal and in a pipe."""

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager

import psutil
import pytest

from command import TIMEOUT_S, run_penstock
from mesh import running_mesh


@asynccontextmanager
async def up(*arguments):
    """`penstock up --json` with what it printed once it was up."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock.cli", "up", "--json", "--base-port", "0", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        text = b""
        async with asyncio.timeout(TIMEOUT_S):
            while not text.endswith(b"\n}\n"):
                text += await process.stdout.readline()
        yield process, json.loads(text)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def alive(pids):
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def family(note):
    """Every process of a mesh, engines included."""
    own = [psutil.Process(each["pid"]) for each in note["processes"]]
    return [each.pid for parent in own for each in (parent, *parent.children(recursive=True))]


async def test_ctrl_c_drains_the_mesh_and_every_process_ends(tiny_model):
    async with up("--engine", "sim", "--model", tiny_model) as (process, note):
        pids = family(note)
        assert {each["tier"] for each in note["processes"]} == {
            *("edge", "auth", "queue", "scheduler", "worker", "routing", "envoy")
        }
        assert len(alive(pids)) == len(pids) > len(note["processes"])
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(TIMEOUT_S):
            assert await process.wait() == 0
        assert alive(pids) == []


async def test_ctrl_c_ends_every_process_of_all_regions(tiny_model):
    arguments = ("--engine", "sim", "--model", tiny_model, "--no-envoy", "--regions", "eu,us")
    async with up(*arguments) as (process, regions):
        assert list(regions) == ["eu", "us"]
        assert len({each["base_port"] for each in regions.values()}) == 2
        assert len({each["api_key"] for each in regions.values()}) == 1
        code, out, err = await run_penstock("generate", "hello", "--target", "us", "--max-tokens", "2", "--json")
        assert (code, json.loads(out)["output_tokens"]) == (0, 2), err
        code, out, err = await run_penstock("snapshot", "edge", "--target", "eu", "--json")
        assert (code, json.loads(out)["instanceId"].partition(".")[0]) == (0, "eu-edge-1"), err
        pids = [pid for each in regions.values() for pid in family(each)]
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(TIMEOUT_S):
            assert await process.wait() == 0
        assert alive(pids) == []


async def test_the_mesh_of_a_killed_command_ends(tiny_model):
    async with up("--engine", "sim", "--model", tiny_model, "--no-envoy") as (process, note):
        pids = family(note)
        process.kill()
        await process.wait()
        ended, remaining = await asyncio.to_thread(
            psutil.wait_procs, [psutil.Process(pid) for pid in alive(pids)], timeout=TIMEOUT_S
        )
        assert not remaining, ended


async def test_the_death_of_a_process_is_shown_at_once_with_its_log(tiny_model):
    async with up("--engine", "sim", "--model", tiny_model, "--no-envoy") as (process, note):
        os.kill(next(each["pid"] for each in note["processes"] if each["name"] == "scheduler-1"), signal.SIGKILL)
        seen = b""
        async with asyncio.timeout(TIMEOUT_S):
            while b"scheduler-1 ended with SIGKILL" not in seen:
                seen += await process.stderr.readline()


async def test_a_process_that_cannot_start_is_shown_with_its_log_and_every_process_ends(tiny_model):
    own = ("--engine", "sim", "--model", tiny_model, "--no-envoy", "--base-port", "0")
    code, _, err = await run_penstock("up", *own, "--set", "PENSTOCK_QUEUE_MAX_DEPTH=many")
    assert code == 1
    assert "queue-1 ended with exit code 2" in err
    assert "PENSTOCK_QUEUE_MAX_DEPTH" in err


async def test_a_port_in_use_is_named_before_a_process_starts_or_a_file_is_deleted(tiny_model, monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        base = taken.getsockname()[1] - 3  # the queue's port
        kept = tmp_path / f"mesh-{base}" / "auth.sqlite"
        kept.parent.mkdir()
        kept.touch()
        own = ("--engine", "sim", "--model", tiny_model, "--no-envoy", "--base-port", str(base))
        code, _, err = await run_penstock("up", *own)
    assert code == 1
    assert f"port {base + 3} of queue-1 is in use" in err
    assert "--base-port" in err
    assert "Traceback" not in err
    assert kept.exists()


async def test_one_request_is_answered_and_explained_tier_by_tier(tiny_model):
    async with running_mesh(engine="sim", model=tiny_model) as mesh:
        arguments = ("generate", "hello", "--raw", "--max-tokens", "20", "--explain", "--target", mesh.plan.grpc)
        code, out, err = await run_penstock(*arguments, "--key", mesh.api_key)
        assert code == 0, err
        assert out.strip()
        assert "worker" in err
        assert "decode" in err
        code, out, err = await run_penstock(*arguments, "--key", mesh.api_key, "--json")
        assert code == 0, err
        answer = json.loads(out)
        inside = sum(stage["seconds"] for stage in answer["stages"])
        assert answer["output_tokens"] == 20
        assert {stage["tier"] for stage in answer["stages"]} >= {"edge", "auth", "queue", "worker"}
        assert inside <= answer["latency_s"]


async def test_keys_and_tenants_are_created_used_listed_and_revoked(tiny_model):
    async with running_mesh(engine="sim", model=tiny_model) as mesh:
        auth = ("--target", mesh.plan.processes_of("auth")[0].admin_address)
        assert (await run_penstock("tenants", "put", "acme", "--requests-per-minute", "2", *auth))[0] == 0
        code, out, err = await run_penstock("keys", "create", "--tenant", "acme", "--json", *auth)
        assert code == 0, err
        made = json.loads(out)
        generate = ("generate", "hi", "--raw", "--max-tokens", "1", "--target", mesh.plan.grpc, "--key", made["secret"])
        assert (await run_penstock(*generate))[0] == 0
        assert (await run_penstock(*generate))[0] == 0
        code, _, err = await run_penstock(*generate)
        assert code == 1
        assert "QUOTA_EXCEEDED" in err
        assert "retry in" in err
        assert made["secret"] not in (await run_penstock("keys", "list", *auth))[1]
        assert made["key_id"] in (await run_penstock("keys", "list", *auth))[1]
        assert (await run_penstock("keys", "revoke", made["key_id"], *auth))[0] == 0
        code, _, err = await run_penstock(*generate)
        assert code == 1
        assert "UNAUTHENTICATED" in err


@pytest.mark.parametrize("tier", ["edge", "auth", "queue", "scheduler", "worker", "routing"])
async def test_settings_of_a_tier_are_shown_and_unknown_ones_rejected(tier):
    code, out, _ = await run_penstock("config", tier)
    assert code == 0
    assert f"PENSTOCK_{tier.upper()}_LISTEN=" in out
    code, _, err = await run_penstock("config", tier, **{f"PENSTOCK_{tier.upper()}_LISTENN": "x"})
    assert code == 1
    assert f"did you mean PENSTOCK_{tier.upper()}_LISTEN" in err


async def test_a_command_without_a_mesh_names_penstock_up(tmp_path):
    code, _, err = await run_penstock("generate", "hello", PENSTOCK_STATE=str(tmp_path))
    assert code == 2
    assert "penstock up" in err


@pytest.mark.parametrize("api", ["grpc", "session", "responses", "chat"])
async def test_a_bench_reports_every_request_and_no_token_out_of_order(tiny_model, api):
    load = ("--requests", "12", "--concurrency", "4", "--prompt-tokens", "8", "--output-tokens", "4:8")
    own = ("--engine", "sim", "--model", tiny_model, "--no-envoy", "--base-port", "0")
    code, out, err = await run_penstock("bench", "--api", api, *load, *own, "--json")
    assert code == 0, err
    figures = json.loads(out)
    assert (figures["completed"], figures["failures"], figures["index_errors"]) == (12, 0, 0)
    assert figures["output_tokens"] > 12
    assert set(figures["cpu_s_by_tier"]) == {"edge", "auth", "queue", "scheduler", "worker"}


@pytest.mark.alone
async def test_a_comparison_of_batching_writes_a_plot(tiny_model, tmp_path):
    picture = tmp_path / "batching.png"
    load = ("--requests", "16", "--concurrency", "16", "--prompt-tokens", "8", "--output-tokens", "2:40")
    settings = ("--set", "PENSTOCK_WORKER_SLOTS=4", "--engine", "sim", "--model", tiny_model, "--no-envoy")
    code, out, err = await run_penstock(
        "bench", "--compare-batching", "--plot", str(picture), *load, *settings, "--json"
    )
    assert code == 0, err
    figures = json.loads(out)
    assert figures["continuous"]["completed"] == figures["static"]["completed"] == 16
    assert figures["continuous_over_static"]["tokens_per_s"] > 1.0
    assert picture.read_bytes().startswith(b"\x89PNG")
