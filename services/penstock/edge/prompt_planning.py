"""Planning of prompts, which continues for a long prompt whose client has left."""

import asyncio
import threading

from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.models.planner import RequestPlanner
from penstock.edge.runner import RequestRunner
from penstock.edge.text.executor import SMALL_INPUT_BYTES


class PromptPlanning:
    """Plans requests, and charges long prompts that were tokenized for a request that has ended."""

    def __init__(self, runner: RequestRunner, planner: RequestPlanner) -> None:
        self._runner = runner
        self._planner = planner

    async def plan(self, context: RequestContext) -> GenerationPlan:
        """Plan a request.

        A long prompt that is being tokenized when its client leaves is tokenized to its end, because the tokenizer
        cannot be interrupted, and is charged.
        """
        if context.size_bytes <= SMALL_INPUT_BYTES:
            return await self._planner.plan(context.spec, context.size_bytes)
        has_begun = threading.Event()
        planning = self._runner.run_task(
            self._planner.plan_or_error(context.spec, context.size_bytes, has_begun.set), f"plan {context.ticket_id}"
        )
        try:
            planned = await asyncio.shield(planning)
        except asyncio.CancelledError:
            if has_begun.is_set():
                planning.add_done_callback(lambda done: self._on_abandoned(context, done))
            else:
                planning.cancel()
            raise
        if isinstance(planned, Exception):
            raise planned
        return planned

    def charge_abandoned(self, context: RequestContext, plan: GenerationPlan) -> None:
        """Charge a long prompt whose request ended before its tokens were reserved."""
        if context.size_bytes > SMALL_INPUT_BYTES:
            self._runner.auth.charge_abandoned(context, plan)

    def _on_abandoned(self, context: RequestContext, planning: "asyncio.Task[GenerationPlan | Exception]") -> None:
        if not planning.cancelled() and not isinstance(plan := planning.result(), Exception):
            self.charge_abandoned(context, plan)
