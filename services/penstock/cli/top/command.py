"""`penstock top`: polls a mesh once a second until Ctrl-C, or once."""

import asyncio
from collections.abc import Sequence

from rich.live import Live

from penstock.cli.tables import stdout_console
from penstock.cli.top.poll import ProcessPoller, ProcessSample, addresses_of, open_poller
from penstock.cli.top.view import frame_of, render


async def top(names: dict[str, str], targets: Sequence[str], *, interval: float, once: bool, as_json: bool) -> None:
    """Show the processes of `names` (by address) and those behind `targets`.

    Raises PenstockError if no process answers at first; a process that stops answering later is shown as such.
    """
    async with open_poller(names | await addresses_of(targets)) as poller:
        samples = await poller.poll()
        if samples[0].error and not any(each.snapshot for each in samples):
            raise samples[0].error
        if not (once or as_json) and stdout_console.is_interactive:
            await _refresh_until_stopped(poller, samples, interval)
            return
        await asyncio.sleep(interval)  # so that rates are current
        frame = frame_of(await poller.poll(), samples)
        if as_json:
            stdout_console.print_json(data=dict(frame))
        else:
            stdout_console.print(render(frame))


async def _refresh_until_stopped(poller: ProcessPoller, before: Sequence[ProcessSample], interval: float) -> None:
    with Live(render(frame_of(before)), console=stdout_console, screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(interval)
            samples = await poller.poll()
            live.update(render(frame_of(samples, before)), refresh=True)
            before = samples
