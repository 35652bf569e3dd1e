"""Metrics of the endpoint picker: decisions and ends of requests, and values that are read at each collection."""

from collections import Counter as Totals
from collections.abc import Iterator

from penstock.chassis.observability.metrics import Observation, counter, histogram
from penstock.mesh.class_names import class_name
from penstock.picker import series
from penstock.picker.endpoints.endpoint import EndpointState
from penstock.picker.endpoints.scraper import EndpointScraper
from penstock.picker.picking.pick import Pick
from penstock.picker.picking.picker import EndpointPicker

_picks = counter(series.PICKS)
_rejections = counter(series.REJECTIONS)
_wait = histogram(series.WAIT)
_pick_duration = histogram(series.PICK_DURATION)
_prompt_tokens = counter(series.PROMPT_TOKENS)
_cached_tokens, _new_tokens = _prompt_tokens.labels("cached"), _prompt_tokens.labels("new")
_responses = counter(series.RESPONSES)
_complete, _cut = _responses.labels("complete"), _responses.labels("cut")
_moves = counter(series.MOVES)


def record_picked(pick: Pick, model: str, took_s: float) -> None:
    """Record a request that has an endpoint. `model`: one that an endpoint reports, or empty."""
    name = class_name(pick.request.priority)
    _picks.labels(model, name).inc()
    _wait.labels(name).observe(pick.waited)
    _pick_duration.observe(took_s)
    _cached_tokens.inc(max(0, pick.request.prompt_tokens - pick.new_tokens))
    _new_tokens.inc(pick.new_tokens)


def record_rejected(priority: int, reason: str) -> None:
    _rejections.labels(class_name(priority), reason).inc()


def record_ended(*, is_complete: bool) -> None:
    (_complete if is_complete else _cut).inc()


def record_moved() -> None:
    _moves.inc()


def observations(picker: EndpointPicker, scraper: EndpointScraper) -> Iterator[Observation]:
    yield Observation(series.WAITING, picker.waiting)
    yield Observation(series.HELD, picker.held)
    yield Observation(series.SLOTS, picker.fleet.pool.totals.slots)
    yield Observation(series.SCRAPE_FAILURES, scraper.failures)
    states = Totals(each.state for each in picker.fleet)
    for state in EndpointState:
        yield Observation(series.ENDPOINTS, states[state], (state,))
