"""`penstock dashboard`: serves the page of a mesh until Ctrl-C."""

import asyncio
import os
import secrets
import signal
from collections.abc import Sequence

from rich.text import Text

from penstock.chassis.errors import PenstockError
from penstock.chassis.operators.access import UNIX_PREFIX, OperatorAccess
from penstock.cli.dashboard.access import PageAccess
from penstock.cli.dashboard.app import DashboardApp
from penstock.cli.dashboard.document import load_document
from penstock.cli.dashboard.frames import FrameSource
from penstock.cli.dashboard.server import serving_page
from penstock.cli.tables import stderr_console, stdout_console
from penstock.cli.top.poll import open_poller

TOKEN_BYTES = 24


async def dashboard(
    names: dict[str, str], targets: Sequence[str], *, listen: str, hosts: Sequence[str], interval: float
) -> None:
    """Serve the page of the processes of `names` (by address) and of those behind `targets`, until SIGINT or SIGTERM.

    `hosts`: names of the page's server at forwarders, in addition to the loopback names.
    At a port its viewers show PENSTOCK_ADMIN_TOKEN, or without that setting a token that is made now and printed.
    Raises PenstockError if no process answers at first, ConfigError or OSError if `listen` cannot be served.
    """
    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    is_unix, known = listen.startswith(UNIX_PREFIX), os.environ.get("PENSTOCK_ADMIN_TOKEN", "")
    token = known or secrets.token_urlsafe(TOKEN_BYTES)
    access = PageAccess(OperatorAccess(is_unix=is_unix, token=token), tuple(each.lower() for each in hosts))
    async with open_poller(names, targets) as poller:
        frames = FrameSource(poller, await poller.poll_first(), interval)
        app = DashboardApp(load_document(), frames, access, _report_refusals)
        async with serving_page(listen, app) as address:
            stdout_console.print(Text(_address_text(address, "" if known else token, is_unix=is_unix)))
            await stop.wait()


def _report_refusals(peer: str, error: PenstockError, count: int) -> None:
    stderr_console.print(Text(f"refused {count:,}, at last {peer}: {error.reason}"))


def _address_text(address: str, made_token: str, *, is_unix: bool) -> str:
    if is_unix:
        return f"page at {address} for this user; forward a port to it: ssh -L 7090:{address.removeprefix(UNIX_PREFIX)}"
    if made_token:  # after the hash, where a browser sends it to no server
        return f"page at http://{address}/#token={made_token}"
    return f"page at http://{address}/ with the token of PENSTOCK_ADMIN_TOKEN"
