"""Messages of an answer: its first, `Accepted`, and its last, `Finished`."""

from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.effects import Finish
from penstock.v1.inference_pb2 import Accepted, Finished, ToolCall, Usage


def accepted_message(context: RequestContext) -> Accepted:
    request = context.request
    return Accepted(
        request_id=context.request_id,
        model=request.plan.model,
        prompt_tokens=request.prompt_tokens,
        max_output_tokens=request.plan.max_output_tokens,
        seed=request.plan.sampling.seed,
        answer_id=context.answer_id,
        model_version=request.plan.model_version,
    )


def finished_message(context: RequestContext, finish: Finish) -> Finished:
    request = context.request
    usage = Usage(
        prompt_tokens=request.charged_prompt_tokens,
        output_tokens=request.output_tokens,
        cached_prompt_tokens=min(request.cached_prompt_tokens, request.charged_prompt_tokens),
    )
    finished = Finished(
        reason=finish.reason,
        usage=usage,
        stop_string=finish.stop_string,
        tool_calls=[
            ToolCall(id=call.id, name=call.name, arguments=call.arguments)
            for call in request.plan.tool_calls(context.answer_id)
        ],
    )
    if context.spec.explain:
        timeline = request.timeline.to_message(
            trace_id=context.telemetry.trace_id, worker_id=request.worker_id, attempts=request.attempt
        )
        finished.timeline.CopyFrom(timeline)
    return finished
