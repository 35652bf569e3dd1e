"""`penstock top`: looks at a mesh once a second until Ctrl-C, or once."""

import asyncio
from collections.abc import Sequence

from rich.live import Live

from penstock.cli.tables import stdout_console
from penstock.cli.top.frame import frame_of
from penstock.cli.top.poll import ProcessPoller, ProcessSample, addresses_of, open_poller
from penstock.cli.top.view import render


async def top(names: dict[str, str], targets: Sequence[str], *, interval: float, once: bool, as_json: bool) -> None:
    """Show the processes of `names` (by address) and those behind `targets`.

    Raises PenstockError where none of them answers at first; what stops answering later is shown as such.
    """
    async with open_poller(names | await addresses_of(targets)) as watch:
        seen = await watch.poll()
        if seen[0].error and not any(each.snapshot for each in seen):
            raise seen[0].error
        if not (once or as_json) and stdout_console.is_interactive:
            await _refresh_until_stopped(watch, seen, interval)
            return
        await asyncio.sleep(interval)  # so that rates are those of now
        frame = frame_of(await watch.poll(), seen)
        if as_json:
            stdout_console.print_json(data=dict(frame))
        else:
            stdout_console.print(render(frame))


async def _refresh_until_stopped(watch: ProcessPoller, before: Sequence[ProcessSample], interval: float) -> None:
    with Live(render(frame_of(before)), console=stdout_console, screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(interval)
            seen = await watch.poll()
            live.update(render(frame_of(seen, before)), refresh=True)
            before = seen
