"""Settlements of a line's requests, which are held until it is known whether the line is answered here."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.effects import Settle


@dataclass(slots=True, eq=False)
class _HeldSettlement:
    """The settlement of one request."""

    context: RequestContext
    settlement: Settle | None = None
    send: Callable[[Settle], None] | None = None
    is_dropped: bool = False

    def hold(self, settlement: Settle, send: Callable[[Settle], None]) -> None:
        self.settlement, self.send = settlement, send
        if self.is_dropped:
            self.drop()

    def settle(self, on_settled: Callable[[], None]) -> bool:
        """Send the settlement. Return False if there is none, because no tokens were reserved."""
        if not (self.settlement and self.send):
            return False
        settlement, self.settlement = self.settlement, None
        self.context.on_settled = on_settled
        self.send(settlement)
        return True

    def drop(self) -> None:
        """Settle the request without a charge, now or once its run has ended."""
        self.is_dropped = True
        self.context.request.handed_over_tokens = 0
        settlement, self.settlement = self.settlement, None
        if settlement and self.send:
            self.send(settlement._replace(prompt_tokens=0, output_tokens=0, cached_tokens=0, outcome="cancelled"))


class LineSettlements:
    """Settles the requests of one line: all of them once it is answered, or without a charge."""

    def __init__(self) -> None:
        self._held: list[_HeldSettlement] = []
        self._unconfirmed = 0
        self.is_settling = False  # whether the line is answered here, and charged
        self._confirmed = asyncio.Event()

    def attach(self, context: RequestContext) -> None:
        """Hold the settlement of a request that was created just now."""
        held = _HeldSettlement(context)
        context.hold_settlement = held.hold
        self._held.append(held)

    async def settle(self) -> None:
        """Charge what the requests have generated. Return once auth has recorded all of it."""
        held, self._held = self._held, []
        self.is_settling, self._unconfirmed = True, len(held)
        for each in held:
            if not each.settle(self._on_settled):
                self._on_settled()
        if self._unconfirmed:
            await self._confirmed.wait()

    def drop(self) -> None:
        """Charge nothing for the requests that are not settled: the line runs again, or is refused."""
        held, self._held = self._held, []
        for each in held:
            each.drop()

    def _on_settled(self) -> None:
        self._unconfirmed -= 1
        if not self._unconfirmed:
            self._confirmed.set()
