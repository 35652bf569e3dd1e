"""Gateway: the operations of the edge that the gRPC and HTTP APIs call."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from structlog.contextvars import bind_contextvars

from penstock.chassis.errors import Overloaded, PenstockError, error_from_failure, failure_from
from penstock.chassis.ids import new_id
from penstock.chassis.observability.trace_context import TRACE_ID
from penstock.edge.admission.filter import CallerClassCache
from penstock.edge.callers.identification import CallerIdentification
from penstock.edge.config import EdgeConfig
from penstock.edge.explain.record import refusal_record_of
from penstock.edge.lifecycle.active_request import ActiveRequest
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.memory import MemoryBudget
from penstock.edge.lifecycle.observability.request_metrics import record_refused
from penstock.edge.lifecycle.observability.telemetry import RequestTelemetry
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.lifecycle.sinks import ResponseSink, ResponseStream
from penstock.edge.mirror import RequestMirror
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.models.loaded_model import LoadedModel
from penstock.edge.models.planner import RequestPlanner
from penstock.edge.prompt_planning import PromptPlanning
from penstock.edge.request.estimate import AdmissionResult, RequestEstimate, estimate_from_spec
from penstock.edge.request.front_times import NO_TIMES, FrontTimes
from penstock.edge.request.limit_headers import Headers
from penstock.edge.request.limits import TIMEOUT_S
from penstock.edge.request.size import BYTES_PER_PYTHON_ID, spec_bytes
from penstock.edge.request.spec import RequestSpec
from penstock.edge.runner import RequestRunner
from penstock.edge.text.executor import SMALL_INPUT_BYTES, TokenizerPools
from penstock.mesh.v1.admission_pb2 import Credential, Identity
from penstock.v1.inference_pb2 import PRIORITY_UNSPECIFIED, CountTokensResponse, Model

Parsed = TypeVar("Parsed")

EXPECTED_WAIT_HEADER = "x-penstock-expected-wait"  # s until a worker serves the model


async def _no_op() -> None:
    pass


class Gateway:
    """Runs requests. Every method raises PenstockError with a message for the caller.

    A spec must satisfy the public limits already (`validate`). Limits that depend on the model are checked here.
    """

    def __init__(
        self,
        config: EdgeConfig,
        runner: RequestRunner,
        catalog: ModelCatalog,
        planner: RequestPlanner,
        pools: TokenizerPools,
    ) -> None:
        self._config = config
        self._lifecycle_limits = config.lifecycle_limits
        self._planning = PromptPlanning(runner, planner)
        self._runner = runner
        self._catalog = catalog
        self._pools = pools
        self._router = runner.router
        self._mirror = RequestMirror(runner, self.generate, key=config.mirror_key, max_copies=config.max_mirror_copies)
        runner.on_routed = self._mirror.copy
        self.identification = CallerIdentification(
            lambda credential: runner.auth.authenticate(credential, config.upstream_timeout)
        )

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        return self._mirror.figures

    @property
    def memory(self) -> MemoryBudget:
        return self._runner.requests.memory

    @asynccontextmanager
    async def generate(
        self,
        spec: RequestSpec,
        credential: Credential,
        admission: AdmissionResult,
        *,
        traceparent: str = "",
        on_admitted: Callable[[], Awaitable[object]] = _no_op,  # awaited first
    ) -> AsyncIterator[ResponseStream]:
        """Run one request: `accepted` first, then deltas, then `finished`.

        async with gateway.generate(spec, credential, gateway.admit(estimate, credential)) as answer:
            async for event in answer: ...

        Entering raises the errors of `create`; iterating raises all others, and rejections before `accepted`. Leaving
        the block before `finished` cancels the request on its worker.
        """
        stream = ResponseStream(self.memory)
        context = self.create(spec, credential, admission, stream, traceparent=traceparent)
        stream.cancel = partial(self._runner.cancel, context)
        stream.limit_headers = lambda: context.limit_headers
        stream.output_format = lambda: context.request.plan.output_format
        stream.describe_token = context.describe_token
        try:
            await on_admitted()
            await self.start(context)
            yield stream
        finally:
            self._runner.cancel(context)
            stream.close()

    async def parse(self, size: int, parse: Callable[[], Parsed]) -> Parsed:
        """Parse a body of `size` bytes. A large one is parsed in a thread, so that it does not delay other requests."""
        return parse() if size <= SMALL_INPUT_BYTES else await self._pools.run(size, parse)

    def admit(
        self,
        estimate: RequestEstimate,
        credential: Credential,
        *,
        traceparent: str = "",
        time_left: float | None = None,  # s until the call's own deadline; the earlier of both limits applies
        caller_classes: CallerClassCache | None = None,  # of the session; None for a single call
        session: Callable[[], str] = str,  # returns the name of the request's conversation; empty: it has none
        front: FrontTimes = NO_TIMES,
    ) -> AdmissionResult:
        """Admit or reject a request before it is parsed.

        If its model is the name of a route, the result has the model that serves it. Raises Overloaded if the queue
        would reject the request, and Unavailable / NO_WORKER for a route without a worker.
        """
        model = ""
        try:
            if self._router.has(estimate.model):
                model = self._router.model_of(estimate, self._caller(credential), session)
                estimate = estimate._replace(model=model)
            time_limit = self._time_limit(estimate.timeout_s, time_left)
            now = self._runner.now()
            admission = self._runner.admission.admit(
                estimate, credential, traceparent, arrived_at=now, time_limit=time_limit, caller_classes=caller_classes
            )
        except PenstockError as error:
            self._record_refused(estimate.model, credential, error, estimate.request_id, traceparent)
            raise
        return admission._replace(model=model, front=front) if model or front is not NO_TIMES else admission

    def routed(self, spec: RequestSpec, credential: Credential, session: Callable[[], str] = str) -> RequestSpec:
        """Return the spec with the model that serves it, for a request that is not admitted. Raises as `admit`."""
        if not self._router.has(spec.model):
            return spec
        return replace(spec, model=self._router.model_of(estimate_from_spec(spec), self._caller(credential), session))

    def hold_headers(self, route: str, admission: AdmissionResult, credential: Credential) -> Headers:
        """Return the predicted wait of an admitted request that waits for a worker; empty if it does not."""
        if not admission.model:  # not of a route
            return ()
        caller = self._caller(credential)
        expected = self._runner.model_wait.expected_wait(route, caller.tenant_id if caller else "", admission.model)
        return () if expected is None else ((EXPECTED_WAIT_HEADER, f"{expected:.0f}"),)

    def _record_refused(
        self, model_name: str, credential: Credential, error: PenstockError, request_id: str, traceparent: str
    ) -> None:
        """Count a request that ends before it is active. Names that callers made up are no labels."""
        caller, model = self._caller(credential) or Identity(), self._catalog.get_cached(model_name)
        record_refused(model.name if model else "", caller.priority, caller.tenant_id, error.reason)
        if request_id or traceparent:  # else nobody can ask for it
            record = refusal_record_of(
                request_id=request_id,
                trace_id=traceparent[TRACE_ID],
                caller=caller,
                model=model_name,
                error=error,
                now=self._runner.now(),
            )
            self._runner.history.add(record, 0.0, failed=True)

    def _caller(self, credential: Credential) -> Identity | None:
        """Return the identity of a caller that auth has admitted or identified recently, also while it is away."""
        return self._runner.auth.fallback.find_known(credential)

    def create(
        self,
        spec: RequestSpec,
        credential: Credential,
        admission: AdmissionResult,
        sink: ResponseSink,
        *,
        traceparent: str = "",
        session_link: str | None = None,
    ) -> RequestContext:
        """Create an active request, which `start` then starts. Raises Overloaded if the edge is full.

        `traceparent` is valid or empty; `session_link` as in `RequestTelemetry`.
        """
        size = spec_bytes(spec)
        try:
            self._runner.requests.check_room(size)
        except PenstockError as error:
            self._record_refused(admission.model or spec.model, credential, error, spec.request_id, traceparent)
            raise
        now = admission.arrived_at
        ticket_id = new_id()
        request_id = spec.request_id or ticket_id
        context = RequestContext(
            request=ActiveRequest(
                ticket_id, arrived_at=now, deadline=now + admission.time_limit, limits=self._lifecycle_limits
            ),
            request_id=request_id,
            spec=replace(spec, model=admission.model) if admission.model else spec,
            credential=credential,
            sink=sink,
            telemetry=RequestTelemetry(
                spec,
                request_id,
                traceparent,
                history=self._runner.history,
                front=admission.front,
                session_link=session_link,
            ),
            size_bytes=size,
            route=spec.model if admission.model else "",
        )
        self._runner.add(context)
        return context

    async def start(self, context: RequestContext, *choices: RequestContext) -> None:
        """Authenticate the caller, tokenize the prompt and reserve tokens. Errors are sent to the request's sink.

        `choices` are further answers to the same prompt, which is charged with the first.
        """
        try:
            # First, so that a caller without a valid key causes no other work.
            context.request.identity = await self.authenticate(context.credential)
            await self._runner.model_wait.wait(context)
            if context.request.is_done:  # its client has cancelled, or its deadline has passed
                return
            plan = await self._planning.plan(context)
            self._runner.requests.add_bytes(context, plan.prompt_bytes)
        except Exception as error:  # noqa: BLE001  # logged by `failure_from`; one request must not end its session
            self.name_caller(error, context.credential)
            self._runner.fail(context, error_from_failure(failure_from(error)))
            return
        if context.request.is_done:  # its client has cancelled, and its telemetry is closed
            self._planning.charge_abandoned(context, plan)
            return
        if not self._runner.admits(context, plan):
            return
        self._reserve(context, plan)
        for choice in choices:
            if choice.request.is_done:
                continue
            assert choice.spec.seed is not None, "the seeds of choices follow from that of the first"
            choice.request.identity = context.request.identity
            choice.request.charges_prompt = False
            self._reserve(choice, plan.with_seed(choice.spec.seed))

    def _reserve(self, context: RequestContext, plan: GenerationPlan) -> None:
        self._runner.on_tokenized(context, plan)

    def add_bytes(self, context: RequestContext, size: int) -> None:
        """Count `size` more bytes of a request, which fails if there is no room for them."""
        try:
            self._runner.requests.add_bytes(context, size)
        except Overloaded as error:
            self._runner.fail(context, error)

    def cancel(self, context: RequestContext) -> None:
        """Cancel a request. Its sink receives the end."""
        self._runner.cancel(context)

    async def count_tokens(self, spec: RequestSpec, *, include_token_ids: bool = False) -> CountTokensResponse:
        """Return the number of tokens of the spec's input for its model. The caller must be identified."""
        model = await self._catalog.find(spec.model)
        encode = partial(model.codec.prompt_ids, spec.input, datetime.now(UTC))
        size = spec_bytes(spec)
        with self._runner.requests.hold_bytes(size):
            ids = await self._pools.run(size, encode)
        return CountTokensResponse(
            prompt_tokens=len(ids),
            context_length=model.context_length,
            token_ids=ids if include_token_ids else (),
        )

    async def choose_model(
        self, name: str, *, route: str, credential: Credential, time_left: float | None
    ) -> LoadedModel:
        """Return the version of a model for the next requests of a call that names it by `route`.

        Waits for a worker if the route holds requests. Raises as `ModelCatalog.choose` and `ModelWait.wait`.
        """
        if self._router.has(route):
            tenant_id = (await self.authenticate(credential)).tenant_id
            deadline = self._runner.now() + self._time_limit(time_left)
            await self._runner.model_wait.wait_for_model(route, tenant_id, name, deadline)
        return await self._catalog.choose(name)

    def hold_bytes(self, size: int) -> AbstractContextManager[None]:
        """Count `size` bytes that belong to no active request. Raises Overloaded if there is no room for them."""
        return self._runner.requests.hold_bytes(size)

    async def token_texts(self, model_name: str, ids: Sequence[int]) -> list[str]:
        """Return the text of each token of a model. The caller must be identified."""
        model = await self._catalog.find(model_name)
        return await self._pools.run(BYTES_PER_PYTHON_ID * len(ids), partial(model.codec.token_texts, ids))

    async def detokenize(self, model_name: str, ids: Sequence[int]) -> str:
        """Return the text of tokens of a model. Raises TokenUnknown. The caller must be identified."""
        model = await self._catalog.find(model_name)
        return await self._pools.run(BYTES_PER_PYTHON_ID * len(ids), partial(model.codec.text_of, ids))

    async def list_models(self, credential: Credential, identity_header: str = "") -> list[Model]:
        await self.identify(credential, identity_header)
        caller = self._caller(credential)
        return self._router.list(caller.tenant_id if caller else "")

    def accept_identity_header(self, header: str, credential: Credential) -> bool:
        """Return whether a header of our own proxy identifies the caller, who is then known. Another one is ignored."""
        return self._runner.auth.accept_identity_header(header, credential)

    async def identify(self, credential: Credential, identity_header: str = "") -> None:
        """Identify a caller for whom nothing is reserved. Raises auth's rejection, or AUTH_LOST."""
        if not self.accept_identity_header(identity_header, credential):
            await self._runner.auth.identify(credential, self._config.identify_timeout)

    async def delegate(self, credential: Credential) -> bytes:
        """Return a proof of auth that lines of a batch may run for the caller later. Raises auth's rejection."""
        return await self._runner.auth.delegate(credential, self._config.identify_timeout)

    def find_known(self, credential: Credential) -> Identity | None:
        """Return the identity of a caller that auth has admitted or identified recently."""
        return self._runner.auth.find_known(credential)

    def is_being_identified(self, credential: Credential) -> bool:
        return self.identification.is_pending(credential)

    async def authenticate(self, credential: Credential) -> Identity:
        """Return the identity of a caller, from the cache if auth has admitted it recently. Raises auth's rejection."""
        return self.find_known(credential) or await self.identification.identify(credential)

    @contextmanager
    def naming(self, credential: Credential) -> Iterator[None]:
        """Call `name_caller` for an error that is raised in the block."""
        try:
            yield
        except Exception as error:
            self.name_caller(error, credential)
            raise

    def name_caller(self, error: Exception, credential: Credential) -> None:
        """Add tenant and key of a cached caller to the next log line of this task, for an unexpected error."""
        if not isinstance(error, PenstockError) and (
            known := self._runner.auth.find_identity(credential, PRIORITY_UNSPECIFIED)
        ):
            bind_contextvars(tenant=known.tenant_id, key_id=known.key_id)

    def _time_limit(self, *limits: float | None) -> float:
        """Return the shortest given limit in seconds, or the default.

        A call's own deadline above one day counts as one day. `validate` rejects a `timeout` above one day later.
        """
        given = [max(0.0, limit) for limit in limits if limit is not None]
        return min([*given, TIMEOUT_S]) if given else self._config.default_timeout
