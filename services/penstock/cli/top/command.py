"""`penstock top`: looks at a mesh once a second until Ctrl-C, or once."""

import asyncio
from collections.abc import Sequence

from rich.live import Live

from penstock.cli.tables import answers
from penstock.cli.top.frame import frame_of
from penstock.cli.top.poll import Sighting, Watch, addresses_of, watching
from penstock.cli.top.view import view_of


async def top(names: dict[str, str], targets: Sequence[str], *, interval: float, once: bool, as_json: bool) -> None:
    """Show the processes of `names` (by address) and those behind `targets`.

    Raises PenstockError where none of them answers at first; what stops answering later is shown as such.
    """
    async with watching(names | await addresses_of(targets)) as watch:
        seen = await watch.look()
        if seen[0].error and not any(each.snapshot for each in seen):
            raise seen[0].error
        if not (once or as_json) and answers.is_interactive:
            await _live(watch, seen, interval)
            return
        await asyncio.sleep(interval)  # so that rates are those of now
        frame = frame_of(await watch.look(), seen)
        if as_json:
            answers.print_json(data=dict(frame))
        else:
            answers.print(view_of(frame))


async def _live(watch: Watch, before: Sequence[Sighting], interval: float) -> None:
    with Live(view_of(frame_of(before)), console=answers, screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(interval)
            seen = await watch.look()
            live.update(view_of(frame_of(seen, before)), refresh=True)
            before = seen
