"""`penstock top`: polls a mesh once a second until `q` or Ctrl-C, or once."""

import asyncio
from collections.abc import Sequence

from rich.console import Group
from rich.live import Live
from rich.text import Text

from penstock.chassis.lifecycle import background
from penstock.cli.tables import stdout_console
from penstock.cli.top.frame import frame_of
from penstock.cli.top.keys import reading_keys
from penstock.cli.top.once import frame_lines
from penstock.cli.top.poll import ProcessPoller, ProcessSample, figures_of, open_poller
from penstock.cli.top.screen import Screen


async def top(names: dict[str, str], targets: Sequence[str], *, interval: float, once: bool, as_json: bool) -> None:
    """Show the processes of `names` (by address) and those behind `targets`.

    Raises PenstockError if no process answers at first; a process that stops answering later is shown as such.
    """
    async with open_poller(names, targets) as poller:
        samples = await poller.poll_first()
        if not (once or as_json) and stdout_console.is_interactive:
            await _refresh_until_stopped(poller, samples, interval)
            return
        await asyncio.sleep(interval)  # so that rates are current
        frame = frame_of(await poller.poll(), samples)
        if as_json:
            stdout_console.print_json(data=dict(frame))
        else:
            stdout_console.print(Text("\n".join(frame_lines(frame, stdout_console.width))))


async def _refresh_until_stopped(poller: ProcessPoller, before: Sequence[ProcessSample], interval: float) -> None:
    screen = Screen(frame_of(before), figures_of(before))
    with reading_keys() as keys, Live(_drawn(screen), console=stdout_console, screen=True, auto_refresh=False) as live:

        async def poll() -> None:
            earlier = before
            while True:
                await asyncio.sleep(interval)
                samples = await poller.poll()
                screen.update(frame_of(samples, earlier), figures_of(samples))
                live.update(_drawn(screen), refresh=True)
                earlier = samples

        async with background(poll()):
            while screen.on_key(await keys.get()):
                live.update(_drawn(screen), refresh=True)


def _drawn(screen: Screen) -> Group:
    width, height = stdout_console.size
    return Group(
        *(Text(text.ljust(width) if style == "reverse" else text, style) for text, style in screen.lines(width, height))
    )
