"""The `penstock` command as a process of its own."""

import asyncio
import json
import os
import sys

TIMEOUT_S = 60.0


async def run_penstock(*arguments, **environment):
    """Run a command to its end; returns exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock.cli", *arguments),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(TIMEOUT_S):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def run_models(mesh, *arguments):
    """Run `penstock models` as an operator of the mesh; returns what it printed."""
    target = mesh.plan.processes_of("auth")[0].admin_address
    code, out, err = await run_penstock("models", *arguments, "--target", target, "--json")
    assert code == 0, err
    return json.loads(out)
