"""Model wait: holds requests until a worker serves their model, and reports them to the queue meanwhile."""

import asyncio
from collections.abc import Callable

import structlog

from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.models.holds import ModelHolds
from penstock.edge.models.router import ModelRouter

log = structlog.get_logger()

REPORT_INTERVAL_S = 1.0  # s
LOOK_INTERVAL_S = 1.0  # s between two looks whether the client of a held request has left


class ModelWait:
    """The held requests of one edge. `report` sends the requests that need workers, by model, to a queue shard."""

    def __init__(
        self,
        catalog: ModelCatalog,
        router: ModelRouter,
        *,
        report: Callable[[dict[str, int]], None],
        now: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._router = router
        self._report = report
        self._now = now
        self._holds = ModelHolds()
        self._has_wanted = asyncio.Event()

    @property
    def figures(self) -> dict[str, float]:
        holds = self._holds
        return {"held": holds.requests, "held_total": holds.held_total, "hold_refused": holds.refused_total}

    async def run(self) -> None:
        """Report the requests that need workers once a second, and once that none does."""
        while True:
            await self._has_wanted.wait()
            self._has_wanted.clear()
            while wanted := self._holds.wanted(self._now()):
                self._report(wanted)
                await asyncio.sleep(REPORT_INTERVAL_S)
            self._report({})

    async def wait(self, context: RequestContext) -> None:
        """Wait for a worker if the route of the request holds requests and has none. Then its spec names the model.

        Raises Unavailable / NO_WORKER beyond the bounds of the route.
        """
        if (missing := self._router.missing_model(context)) is None:
            return
        (model, limits), since = missing, self._now()
        time_left = context.request.deadline - since
        try:
            expected = self._holds.admit(model, limits, time_left, since)
        finally:
            self._has_wanted.set()
        log.info("request_held", ticket_id=context.ticket_id, model=model, expected_s=round(expected, 1))
        until = since + min(limits.seconds, time_left)
        try:
            while self._router.missing_model(context) and not context.request.is_done and self._now() < until:
                await self._catalog.wait_changed(min(LOOK_INTERVAL_S, until - self._now()))
            if self._router.missing_model(context) and not context.request.is_done:
                raise self._holds.timed_out(model, self._now())
        finally:
            self._holds.release(model)
        if context.request.is_done:
            return
        self._holds.on_served(model)
        context.request.on_held(since, self._now())
        context.spec = self._router.spec_of(context)
