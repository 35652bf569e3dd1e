"""One tier as a process of its own, with real signals and its log."""

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

from operators import admin_socket

TIMEOUT_S = 60.0


@asynccontextmanager
async def tier_process(tier, *, before="", **settings):
    """Listens on a free port unless `settings` (PENSTOCK_<TIER>_*) name one; those of this environment are removed.

    The process runs the code `before` first. Its Admin service is at `admin_address`.
    """
    with admin_socket() as admin:
        async with _process(tier, before, {"LISTEN": "127.0.0.1:0", "ADMIN_LISTEN": admin, **settings}) as process:
            yield process


@asynccontextmanager
async def _process(tier, before, settings):
    own = {f"PENSTOCK_{tier.upper()}_{name}": value for name, value in settings.items()}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")} | own
    start = f"import runpy; {before}\nrunpy.run_module('penstock.{tier}', run_name='__main__', alter_sys=True)"
    program = ("-c", start) if before else ("-m", f"penstock.{tier}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *program), env=environment, stderr=asyncio.subprocess.PIPE
    )
    process.admin_address = settings["ADMIN_LISTEN"]
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def wait_for_event(process, event):
    """The next line of the log with `event`."""
    async with asyncio.timeout(TIMEOUT_S):
        async for line in process.stderr:
            found = json.loads(line) if line.startswith(b"{") else {}
            if found.get("event") == event:
                return found
    raise AssertionError(f"a process ended with {await process.wait()} before it logged {event}")


async def address_of(process):
    return (await wait_for_event(process, "listening"))["address"]
