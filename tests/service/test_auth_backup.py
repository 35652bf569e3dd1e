"""`python -m penstock.auth.backup`: a copy of the store of a running auth, and auth on that copy."""

import asyncio
import os
import stat
import sys

from auth_process import auth_process
from auth_server import edge
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import admin_pb2 as pb
from response_calls import create, read, response_stream

TIMEOUT_S = 60.0
STORE = "auth.sqlite"


async def run_backup(store, action, folder):
    """Return exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock.auth.backup", action, str(folder)),
        env={**os.environ, "PENSTOCK_AUTH_STORE": str(store)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(TIMEOUT_S):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_auth_serves_the_keys_and_responses_of_a_copy_that_was_made_while_it_ran(tmp_path):
    store, copy = tmp_path / STORE, tmp_path / "copy"
    async with auth_process(tmp_path) as (process, found), response_stream(found.responses) as responses:
        made = await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="default"))
        await responses(create("r1", request=b"sealed"))
        assert (await run_backup(store, "save", copy))[0] == 0
        later = await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="default"))
        code, _, error = await run_backup(store, "restore", copy)
        assert (code, "end auth first" in error) == (1, True)
        process.kill()
        await process.wait()
    store.write_bytes(b"no database" * 1000)
    assert (await run_backup(store, "restore", copy))[0] == 0
    assert store.with_name(f"{STORE}.former").read_bytes().startswith(b"no database")
    async with auth_process(tmp_path) as (_, found), edge(found) as stream:
        admitted = await stream.reserve(credential=Credential(bearer=made.secret))
        assert admitted.identity.key_id == made.key.key_id
        keys = (await found.admin.ListKeys(pb.ListKeysRequest())).keys
        assert later.key.key_id not in {each.key_id for each in keys}
        async with response_stream(found.responses) as responses:
            [stored] = await responses(read("r1"))
            assert stored.request == b"sealed"


async def test_a_copy_has_every_file_of_the_store_for_its_user_alone(tmp_path):
    store, copy = tmp_path / STORE, tmp_path / "copy"
    async with auth_process(tmp_path) as (_, found):
        await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="default"))
        code, out, _ = await run_backup(store, "save", copy)
        assert code == 0
    suffixes = ("", ".audit.jsonl", ".mesh-secret", ".pepper", ".responses")
    assert [each.name for each in sorted(copy.iterdir())] == [STORE + each for each in suffixes]
    assert [line.split()[0] for line in out.splitlines()] == [str(copy / (STORE + each)) for each in suffixes]
    assert {stat.S_IMODE(each.stat().st_mode) for each in copy.iterdir()} == {0o600}
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700


async def test_a_damaged_copy_or_a_missing_store_is_refused_before_a_file_changes(tmp_path):
    store, copy = tmp_path / STORE, tmp_path / "copy"
    code, _, error = await run_backup(store, "save", copy)
    assert (code, "there is no store" in error) == (1, True)
    async with auth_process(tmp_path):
        assert (await run_backup(store, "save", copy))[0] == 0
        code, _, error = await run_backup(store, "save", copy)
        assert (code, "name a new folder" in error) == (1, True)
    before = store.read_bytes()
    (copy / STORE).write_bytes(b"x" * 100)
    code, _, error = await run_backup(store, "restore", copy)
    assert (code, "is damaged" in error) == (1, True)
    code, _, error = await run_backup(":memory:", "save", tmp_path / "other")
    assert (code, "pg_dump" in error) == (1, True)
    assert store.read_bytes() == before
