"""Model wait: holds requests until a worker serves their model, and reports them to the queue meanwhile."""

import asyncio
from collections.abc import Callable

import structlog

from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.models.holds import HoldLimits, ModelHolds
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

    def expected_wait(self, route: str, tenant_id: str, model: str) -> float | None:
        """Return the s for which a call of a route waits for a worker, as predicted. None if it does not wait."""
        limits = self._router.hold_limits(route, tenant_id, model)
        return self._holds.expected(model, limits, self._now()) if limits else None

    async def wait(self, context: RequestContext) -> None:
        """Wait for a worker if the route of the request holds requests and has none. Then its spec names the model.

        Raises Unavailable / NO_WORKER beyond the bounds of the route.
        """
        if (limits := self._router.missing_model(context)) is None:
            return
        request, since = context.request, self._now()
        request.is_held = True
        await self._hold(
            context.spec.model,
            limits,
            request.deadline,
            lambda: not request.is_done and self._router.missing_model(context) is not None,
        )
        if not request.is_done:
            request.on_held(since, self._now())
            context.spec = self._router.spec_of(context)

    async def wait_for_model(self, route: str, tenant_id: str, model: str, deadline: float) -> None:
        """Wait for a worker of a model for a call that is no request yet. `deadline`: s. Raises as `wait`."""
        if limits := self._router.hold_limits(route, tenant_id, model):
            is_missing = lambda: self._router.hold_limits(route, tenant_id, model) is not None  # noqa: E731
            await self._hold(model, limits, deadline, is_missing)

    async def _hold(self, model: str, limits: HoldLimits, deadline: float, is_missing: Callable[[], bool]) -> None:
        """Wait until `is_missing` returns false."""
        since = self._now()
        until = min(since + limits.seconds, deadline)
        try:
            expected = self._holds.admit(model, limits, deadline - since, since)
        finally:
            self._has_wanted.set()
        log.info("request_held", model=model, expected_s=round(expected, 1))
        try:
            while is_missing() and self._now() < until:
                await self._catalog.wait_changed(min(LOOK_INTERVAL_S, until - self._now()))
            if is_missing():
                raise self._holds.timed_out(model, self._now())
            self._holds.on_served(model)
        finally:
            self._holds.release(model)
