"""One run of a line, from its body to its answer."""

import time
from collections.abc import Callable
from functools import partial

from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import Aborted, InvalidArgument
from penstock.edge.api.lines.call import EmbeddingsCall, GenerationCall, choice_of_line, parse_line
from penstock.edge.api.lines.output import LineOutput
from penstock.edge.api.lines.settlements import LineSettlements
from penstock.edge.api.openai.choices import WholeChoice, whole_response
from penstock.edge.api.openai.common import AnyDelta
from penstock.edge.api.openai.embeddings import embedding_list
from penstock.edge.choice_calls import generate_choices
from penstock.edge.embedder import embed
from penstock.edge.gateway import Gateway
from penstock.edge.lifecycle.sinks import ResponseStream
from penstock.edge.request.estimate import AdmissionResult, estimate_from_spec
from penstock.edge.request.session_names import session_of
from penstock.edge.request.spec import RequestSpec
from penstock.edge.text.errors import TokenUnknown
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.mesh.v1.batch_pb2 import LineState, StartLine
from penstock.v1.inference_pb2 import Accepted, Delta, Finished


class LineRun:
    """Runs one line."""

    def __init__(self, gateway: Gateway, start: StartLine, on_running: Callable[[], object]) -> None:
        self.start = start
        self.settlements = LineSettlements()
        self.has_own_timeout = False
        self.is_resumed = False
        self.input_tokens = 0
        self.output_tokens = 0
        self._gateway = gateway
        self._credential = Credential(delegation=start.owner.delegation)
        self._on_running = on_running  # called with the first output
        self._output: LineOutput | None = None  # of a line with one answer
        self._accepted: Accepted | None = None

    def progress(self) -> LineState | None:
        """Return what another edge needs to continue the line; None if it has not grown."""
        if self._output and self._accepted and self._output.has_grown:
            return self._output.state(self._accepted)
        return None

    async def answer(self) -> bytes:
        """Return the body of the answer. Raises the error of the request. The settlements are held."""
        size = len(self.start.body)
        call = await self._gateway.parse(size, partial(parse_line, self.start))
        self.has_own_timeout = call.has_own_timeout
        if isinstance(call, EmbeddingsCall):
            return await self._embed(call)
        if call.request.has_several_choices:
            return await self._generate_choices(call)
        try:
            return await self._generate(call)
        except InvalidArgument as error:
            if not (self.is_resumed and error.reason == TokenUnknown.default_reason):
                raise
            text = "the model does not know the tokens of an earlier run; the line begins anew"
            raise Aborted(text, reason="MODEL_REPLACED", retry_after=0.0) from None

    async def _generate(self, call: GenerationCall) -> bytes:
        spec = call.request.spec
        self.is_resumed = call.begun is not None
        admission = self._admit(spec, call)
        stream = ResponseStream(self._gateway.memory)
        context = self._gateway.create(spec, self._credential, admission, stream)
        self.settlements.attach(context)
        self._output = LineOutput(call.begun)
        finished = Finished()
        try:
            await self._gateway.start(context)
            async for event in stream:
                if isinstance(event, Delta):
                    if not self._output.tokens:
                        self._on_running()
                    self._output.add(event)
                elif isinstance(event, Finished):
                    finished = event
                else:
                    self._accepted = event
        finally:
            self._gateway.cancel(context)
            stream.close()
        assert self._accepted, "an answer begins with `accepted`"
        finished.usage.output_tokens = self._output.tokens  # those of earlier runs included
        finished.usage.prompt_tokens = self._accepted.prompt_tokens
        self._count(finished)
        plan = context.request.plan
        serializer = call.serializer_for(
            call.request, created=int(time.time()), output=plan.output_format, describe=context.describe_token
        )
        if spec.logprobs:
            serializer.collect_logprobs(self._output.whole())
        body: bytes = serializer.whole(self._accepted, self._output.text, finished)
        return body

    async def _generate_choices(self, call: GenerationCall) -> bytes:
        request = call.request
        generating = generate_choices(
            self._gateway,
            request.generated_spec,
            self._credential,
            self._admit(request.spec, call),
            inputs=request.inputs,
            named=lambda spec, choice: choice_of_line(spec, self.start, choice),
            on_created=self.settlements.attach,
        )
        async with generating as events:
            deltas: list[list[AnyDelta]] = [[] for _ in events.sinks]
            choices = [WholeChoice(each) for each in deltas]
            is_running = False
            async for event in events:
                if isinstance(event, Delta):
                    if not is_running:
                        is_running = True
                        self._on_running()
                    deltas[event.choice].append(event)
                elif isinstance(event, Finished):
                    choices[event.choice].finished = event
                    self._count(event)

            new_serializer = partial(
                call.serializer_for,
                created=int(time.time()),
                output=events.output_format(),
                describe=events.describe_token,
            )
            return whole_response(request, new_serializer, events.accepted[0], choices)

    async def _embed(self, call: EmbeddingsCall) -> bytes:
        embedded = await embed(
            self._gateway,
            call.request.call,
            self._credential,
            call.request.encoding,
            time_left=self._time_left,
            session=lambda: session_of((), call.fields.members),
            on_created=self.settlements.attach,
        )
        self.input_tokens = embedded.prompt_tokens
        return embedding_list(embedded)

    @property
    def _time_left(self) -> float:
        return seconds_of(self.start.timeout)

    def _admit(self, spec: RequestSpec, call: GenerationCall) -> AdmissionResult:
        return self._gateway.admit(
            estimate_from_spec(spec),
            self._credential,
            time_left=self._time_left,
            session=lambda: session_of((), call.fields.members),
        )

    def _count(self, finished: Finished) -> None:
        self.input_tokens += finished.usage.prompt_tokens
        self.output_tokens += finished.usage.output_tokens
