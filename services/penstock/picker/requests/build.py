"""The demand of a request, from what the proxy sent of it."""

from penstock.picker.exchange.exchange import Exchange
from penstock.picker.picking.estimates import Estimates
from penstock.picker.picking.pick import PickRequest
from penstock.picker.requests.body import parse_body
from penstock.picker.requests.caller import CallerHeaders
from penstock.picker.requests.prefix import prefix_hashes


def pick_request(exchange: Exchange, callers: CallerHeaders, estimates: Estimates) -> PickRequest:
    """Return the demand of a complete request. Without a body it is small, and needs no slot of an engine."""
    caller, body = callers.read(exchange.headers), parse_body(exchange.body)
    return PickRequest(
        tenant=caller.tenant,
        priority=caller.priority,
        weight=caller.weight,
        model=body.model,
        prompt_tokens=estimates.prompt_tokens(body.prompt_bytes),
        prompt_bytes=body.prompt_bytes,
        prefix_hashes=prefix_hashes(body.prefix, body.model),
        max_output_tokens=body.max_output_tokens,
        time_limit=caller.time_limit,
        subset=exchange.subset,
        needs_slot=exchange.has_body,
    )
