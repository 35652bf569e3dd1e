"""Values of an edge that its metrics read at each collection."""

from collections.abc import Iterator

from penstock.chassis.observability.metrics import Observation
from penstock.edge import series
from penstock.edge.api.doors import Doors
from penstock.edge.lifecycle.record import RequestState
from penstock.edge.regions.guests import GuestService
from penstock.edge.runner import RequestRunner
from penstock.mesh.class_names import class_name


def observations(runner: RequestRunner, doors: Doors, guests: GuestService) -> Iterator[Observation]:
    requests, memory = runner.requests, runner.requests.memory
    states = requests.count_by_state()
    for state in RequestState:
        if state is not RequestState.DONE:
            yield Observation(series.ACTIVE, states[state], (state,))
    yield Observation(series.HELD_BYTES, memory.held_bytes)
    yield Observation(series.MAX_HELD_BYTES, memory.max_bytes)
    yield Observation(series.SLOW_READERS_ENDED, memory.ended_readers)
    yield Observation(series.HTTP_CONNECTIONS, doors.http_connections)
    yield Observation(series.LINKS, runner.auth.links_up, ("auth",))
    yield Observation(series.LINKS, runner.queue.links_up, ("queue",))
    yield Observation(series.LINKS, runner.workers.links_up, ("worker",))
    yield Observation(series.LINKS, runner.regions.links_up, ("region",))
    for region, runs in runner.regions.runs:
        yield Observation(series.SPILLED, runs, (region,))
    yield Observation(series.GUESTS, guests.running)
    yield Observation(series.RESERVATIONS_OPEN, runner.reservations_open)
    yield Observation(series.FALLBACK_ACTIVE, runner.auth.fallback.is_active)
    for rejected, count in runner.admission.rejections.items():
        labels = (class_name(rejected.priority), rejected.reason, rejected.tier)
        yield Observation(series.REJECTED, count, labels)
    for reason, count in doors.refused.items():
        yield Observation(series.REFUSED_CALLS, count, (reason,))
