"""The examples and the Python code of the documents, each run against one mesh of real processes."""

import asyncio
import os
import re
import shutil
import sys

import pytest
import pytest_asyncio

from command import run_penstock
from documents import blocks
from mesh import TIMEOUT_S, running_mesh, snapshot, stub_client
from paths import REPO
from penstock.v1.inference_pb2 import ListModelsRequest

EXAMPLES = REPO / "examples"
SLOW_STEPS = ("PENSTOCK_WORKER_SIM_BASE_S=0.01",)  # s; an edge can be killed in the middle of an answer

# Runs a code block as documents show it: `await` and `async with` need no function around them.
RUN_BLOCK = """
import ast, asyncio, inspect, pathlib, sys
source = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
result = eval(compile(source, sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {"__name__": "__main__"})
if inspect.iscoroutine(result):
    asyncio.run(result)
"""

pytestmark = pytest.mark.asyncio(loop_scope="module")  # the loop of the mesh


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tiny_model):
    async with running_mesh(engine="sim", model=tiny_model, edges=2, settings=SLOW_STEPS) as running:
        async with stub_client(running) as client:
            [model] = [each.name for each in await listed_models(client)]
            target = running.plan.processes_of("auth")[0].admin_address
            code, _, error = await run_penstock("models", "route", "gpt-4o", "--to", model, "--target", target)
            assert code == 0, error
            while len(await listed_models(client)) == 1:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.05)
        yield running


async def listed_models(client):
    """Return the models that an edge serves, and its routes, by name."""
    response = await client.stub.ListModels(ListModelsRequest(), metadata=client.metadata, timeout=TIMEOUT_S)
    return list(response.models)


@pytest.fixture(scope="module")
def first_edge(mesh):
    return mesh.plan.processes_of("edge")[0]


async def run(mesh, *command):
    """Run a program to its end with the mesh's key; returns its output."""
    process = await start(mesh, *command)
    async with asyncio.timeout(TIMEOUT_S):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def start(mesh, *command):
    environment, pipe = {**os.environ, "PENSTOCK_API_KEY": mesh.api_key}, asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, cwd=REPO, env=environment, stdout=pipe, stderr=pipe)


def python(name):
    return sys.executable, str(EXAMPLES / name)


async def test_the_openai_client_example_streams_a_response(mesh, first_edge):
    out = await run(mesh, *python("openai_client.py"), f"http://{first_edge.http}/v1")
    assert re.search(r"\d+ tokens$", out.strip())


async def test_the_grpc_example_streams_an_answer(mesh, first_edge):
    out = await run(mesh, *python("grpc_client.py"), first_edge.address)
    assert re.search(r"\d+ tokens$", out.strip())


async def test_the_session_example_runs_three_requests_on_one_stream(mesh, first_edge):
    out = await run(mesh, *python("sdk_session.py"), first_edge.address)
    assert len(re.findall(r"\(\d+ tokens\)", out)) == 3


async def test_the_node_example_streams_an_answer(mesh, first_edge):
    node, packages = shutil.which("node"), EXAMPLES / "node" / "node_modules"
    if not (node and packages.is_dir()):
        pytest.skip("examples/node needs Node.js and its packages: apt-get install nodejs npm, then ./tools/test")
    out = await run(mesh, node, str(EXAMPLES / "node" / "generate.js"), first_edge.address)
    assert re.search(r"\d+ tokens$", out.strip())


@pytest.mark.parametrize("block", blocks("python"), ids=str)
async def test_python_code_of_the_documents_runs_unchanged(mesh, first_edge, tmp_path, block):
    async with stub_client(mesh) as client:
        [model] = [each.name for each in await listed_models(client) if not each.targets]
    addresses = {"127.0.0.1:7080": first_edge.http, "127.0.0.1:7001": first_edge.address, "pk_…": mesh.api_key}
    text = block.text.replace("SmolLM2-135M-Instruct", model)
    for shown, real in addresses.items():
        text = text.replace(shown, real)
    source = tmp_path / "block.py"
    source.write_text(text, encoding="utf-8")
    assert (await run(mesh, sys.executable, "-c", RUN_BLOCK, str(source))).strip()


async def test_the_resume_example_continues_at_another_edge_when_its_edge_is_killed(mesh):
    """The last test: the mesh has lost an edge after it."""
    second, first = mesh.plan.processes_of("edge")
    edge = next(child for child in mesh.processes.children if child.spec.name == first.name)
    process = await start(mesh, *python("resume.py"), first.address, second.address)
    async with asyncio.timeout(TIMEOUT_S):
        beginning = await process.stdout.read(1)
        edge.process.kill()
        rest, err = await process.communicate()
    out = (beginning + rest).decode()
    assert process.returncode == 0, err.decode()
    assert re.search(rf"{first.address} was lost after \d+ tokens", out)
    assert out.strip().endswith("200 tokens")
    assert (await snapshot(second.admin_address)).figures["requests_started"] > 0
