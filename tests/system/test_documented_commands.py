"""Runs the commands that the documents show for a mesh on this machine and for a PostgreSQL server, in their order."""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from documents import blocks, commands
from paths import REPO
from penstock.auth.identity.tenant import Tenant
from penstock.auth.store.opening import opened_store
from penstock.auth.store.store import PutTenant
from penstock.local_mesh.postgres import SUPERUSER, postgres_programs
from stores import postgres_server

TIMEOUT_S = 60.0
MODEL = "SmolLM2-135M-Instruct"  # the name by which documents call the model; it is a tiny one here
KEY_ID = "fhk2m3qa"  # stands for the id of any key
REQUEST_ID = "94c1535a03f6d7aa28b22cc263dedf34"  # stands for the id of any request
OPTIONAL_PROGRAMS = ("promtool",)  # of Debian's package prometheus
UNTIL_CTRL_C = re.compile(r"penstock dashboard\b")
STARTS_THE_MESH = re.compile(r"penstock up\b")  # the fixture does, with an engine that computes nothing
BY_PLACE = {place: [each for each in blocks("console") if each.place == place] for place in ("local", "database")}

pytestmark = pytest.mark.asyncio(loop_scope="module")  # the loop of the mesh


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tiny_model):
    """`penstock up`; its state as `--json` shows it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock.cli", "up", "--json", "--base-port", "0", "--no-envoy", "--batch"),
        *("--engine", "sim", "--model", tiny_model, "--workers", "2"),
        *("--set", f"PENSTOCK_WORKER_SERVED_NAME={MODEL}"),
        *("--set", "PENSTOCK_WORKER_SIM_BASE_S=0.0001"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        text = b""
        async with asyncio.timeout(TIMEOUT_S):
            while not text.endswith(b"\n}\n"):
                text += await process.stdout.readline()
        yield json.loads(text)
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        async with asyncio.timeout(TIMEOUT_S):
            await process.communicate()
    assert process.returncode == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with the files of the checkout, where commands may leave files."""
    made = tmp_path_factory.mktemp("operator")
    for each in REPO.iterdir():
        (made / each.name).symlink_to(each)
    return made


@pytest.mark.parametrize("block", BY_PLACE["local"], ids=str)
async def test_the_commands_for_a_mesh_on_this_machine_succeed(mesh, folder, block):
    names = {
        "penstock dashboard": "penstock dashboard --listen 127.0.0.1:0",
        "unix:/run/penstock/page": f"unix:{folder}/page",
        "unix:/run/penstock/": f"unix:{mesh['log_folder']}/",
        "auth.sqlite": f"{mesh['log_folder']}/auth.sqlite",
    }
    for each in commands(block):
        text = each.text
        program = text.split()[0]
        if STARTS_THE_MESH.search(text) or (program in OPTIONAL_PROGRAMS and not shutil.which(program)):
            continue
        for shown, real in names.items():
            text = text.replace(shown, real)
        if KEY_ID in text:
            text = text.replace(KEY_ID, await stored_key(folder))
        if REQUEST_ID in text:
            text = text.replace(REQUEST_ID, await ended_request(folder))
        await check(each, text, folder)


async def ended_request(folder):
    """Return the id of a request that has ended."""
    _, out = await run('penstock generate "Once upon a time" --max-tokens 100 --json', folder)
    return json.loads(out)["request_id"]


async def stored_key(folder):
    """Return the id of a key that a former command has created."""
    _, out = await run("penstock keys list --json", folder)
    return next(each["keyId"] for each in json.loads(out) if each["keyId"] != "dev")


async def check(command, text, folder, **variables):
    """Run a command. It ends with 0, and its output has the lines that are shown, in their order."""
    code, out = await run(text, folder, **variables)
    assert code == 0, f"{command}\n{out}"
    lines = iter([without_figures(each) for each in out.splitlines()])
    for shown in command.output.splitlines():
        pattern = ".*".join(map(re.escape, without_figures(shown).split("…")))
        assert any(re.fullmatch(pattern, line) for line in lines), f"{command}: {shown}\n{out}"


async def run(text, folder, **variables):
    """Return exit code and output. A command that runs until Ctrl-C gets it after its first line."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    shell = ("bash", "-o", "errexit", "-o", "pipefail", "-c", text)
    process = await asyncio.create_subprocess_exec(
        *shell,
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "160", **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            first = b""
            if UNTIL_CTRL_C.match(text):
                first = await process.stdout.readline()
                process.send_signal(signal.SIGINT)
            rest, _ = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    return process.returncode, (first + rest).decode()


def without_figures(line):
    """Replace figures, dates and hashes, and the blanks between columns."""
    return " ".join(re.sub(r"[0-9a-f]{16,}|\d[\d.,:+TZ-]*", "#", line).split())


async def test_the_commands_for_a_database_copy_what_auth_has_stored(tmp_path):
    """Auth writes to the database that the first block makes, and reads the one that the last block restores."""
    with postgres_server(tmp_path) as server:
        variables = {"PGHOST": str(server.home), "PGUSER": SUPERUSER, "PGDATABASE": "postgres"}
        variables["PATH"] = os.pathsep.join((str(postgres_programs()), os.environ["PATH"]))
        create, copy = BY_PLACE["database"]
        for each in commands(create):
            await check(each, each.text, tmp_path, **variables)
        location = f"postgresql://penstock@/penstock?host={server.home}"
        async with opened_store(location) as (store, _):
            persisted = asyncio.get_running_loop().create_future()
            store.write(PutTenant(Tenant(tenant_id="acme")), persisted.set_result)
            assert await asyncio.wait_for(persisted, TIMEOUT_S) is None
        for each in commands(copy):
            await check(each, each.text, tmp_path, **variables)
        async with opened_store(location.replace("/penstock?", "/restored?")) as (_, state):
            assert "acme" in {each.tenant_id for each in state.tenants}
