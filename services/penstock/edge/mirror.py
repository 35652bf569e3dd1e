"""Mirror: copies of requests to the mirror of their route. Their answers are discarded."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from penstock.chassis.errors import PenstockError
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.sinks import ResponseStream
from penstock.edge.request.estimate import AdmissionResult, RequestEstimate, estimate_from_spec
from penstock.edge.request.spec import RequestSpec
from penstock.edge.runner import RequestRunner
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1.inference_pb2 import PRIORITY_BATCH

Generate = Callable[[RequestSpec, Credential, AdmissionResult], AbstractAsyncContextManager[ResponseStream]]


class RequestMirror:
    """Runs copies as requests of the lowest class of a key of the operator, whose tenant is charged for them.

    A copy is dropped if `max_copies` run. It never delays its request: it is a task of its own, which begins after auth
    and the queue have accepted the request, and its errors are counted.
    """

    def __init__(self, runner: RequestRunner, generate: Generate, *, key: str, max_copies: int) -> None:
        self._runner = runner
        self._generate = generate
        self._credential = Credential(bearer=key)  # empty: nothing is copied
        self._max_copies = max_copies
        self._running = 0
        self._copies: Counter[str] = Counter()

    @property
    def figures(self) -> dict[str, float]:
        return {
            "mirror_copies": self._running,
            "mirrored": self._copies["mirrored"],
            "mirror_dropped": self._copies["dropped"],
            "mirror_failed": self._copies["failed"],
        }

    def copy(self, context: RequestContext) -> None:
        """Run a copy of a request that was accepted, if its route has a mirror."""
        if not (context.route and self._credential.bearer):
            return
        model = self._runner.router.mirror_of(context)
        if not model:
            return
        if self._running >= self._max_copies:
            self._copies["dropped"] += 1
            return
        self._running += 1
        spec = replace(context.spec, request_id="", model=model, priority=PRIORITY_BATCH)
        self._runner.run_task(self._run(spec, context.request.deadline), f"mirror of {context.ticket_id}")

    async def _run(self, spec: RequestSpec, deadline: float) -> None:
        try:
            admission = self._admit(estimate_from_spec(spec), deadline)
            async with self._generate(spec, self._credential, admission) as events:
                async for _ in events:
                    pass
        except PenstockError:
            self._copies["failed"] += 1
        else:
            self._copies["mirrored"] += 1
        finally:
            self._running -= 1

    def _admit(self, estimate: RequestEstimate, deadline: float) -> AdmissionResult:
        """Raises Overloaded if the queue would reject the copy."""
        now = self._runner.now()
        return self._runner.admission.admit(
            estimate, self._credential, "", arrived_at=now, time_limit=max(0.0, deadline - now)
        )
