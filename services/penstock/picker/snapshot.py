"""Figures and tables of an endpoint picker for operators."""

from typing import Any

from penstock.picker.endpoints.endpoint import Endpoint
from penstock.picker.endpoints.fleet import EndpointFleet
from penstock.picker.picking.picker import EndpointPicker

MAX_ENDPOINT_ROWS = 1_000


def figures(picker: EndpointPicker) -> dict[str, float]:
    fleet = picker.fleet
    return {
        "requests_waiting": picker.waiting,
        "slots_held": picker.held,
        "slots": fleet.pool.totals.slots,
        "endpoints": len(fleet.endpoints),
        "endpoints_usable": len(fleet.pool),
        "mean_hold_s": picker.estimates.mean_hold,
        "bytes_per_token": picker.estimates.bytes_per_token,
    }


def tables(fleet: EndpointFleet) -> dict[str, Any]:
    return {"endpoints": [_row(each) for each in sorted(fleet, key=lambda each: each.address)[:MAX_ENDPOINT_ROWS]]}


def _row(endpoint: Endpoint) -> dict[str, Any]:
    load = endpoint.load
    return {
        "address": endpoint.address,
        "state": endpoint.state,
        "slots": endpoint.worker.profile.slots,
        "held": endpoint.held,
        "waiting": load.waiting if load else None,
        "running": load.running if load else None,
        "kv_usage": load.kv_usage if load else None,
        "models": sorted(load.models) if load else [],
    }
