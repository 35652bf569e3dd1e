"""Frames to other regions: token ids and sizes of a request, never its text or its caller's key."""

from penstock.chassis.durations import nanos_left, nanos_since
from penstock.edge.lifecycle.context import RequestContext
from penstock.mesh.forms import form_message
from penstock.mesh.v1.region_pb2 import GuestOffer, RegionServiceRunRequest
from penstock.mesh.v1.worker_pb2 import Cancel


def offer(context: RequestContext, handle: int, trip: float, now: float) -> RegionServiceRunRequest:
    """`trip`: s to the region and back, which count against the deadline and the TTFT target."""
    request, plan, identity = context.request, context.request.plan, context.request.identity
    return RegionServiceRunRequest(
        offer=GuestOffer(
            handle=handle,
            request_id=context.request_id,
            model=plan.model_key,
            token_ids=[*plan.prompt_ids, *request.output.token_ids],
            emitted=len(request.output.token_ids),
            max_output_tokens=request.output.tokens_left,
            sampling=plan.sampling,
            ignore_eos=plan.ignore_eos,
            form=form_message(plan.form) if plan.form else None,
            tenant_id=identity.tenant_id,
            priority=identity.priority,
            weight=identity.weight,
            cache_salt=identity.cache_salt,
            time_left_nanos=nanos_left(request.deadline - trip, now),
            away_nanos=max(1, nanos_since(request.arrived_at, now + trip)),
            traceparent=context.telemetry.traceparent,
            may_have_run=context.spec.is_continued or bool(request.lost_runs),
        )
    )


def cancel(handle: int) -> RegionServiceRunRequest:
    return RegionServiceRunRequest(cancel=Cancel(handle=handle))
