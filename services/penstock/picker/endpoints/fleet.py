"""The fleet: all endpoints, and the pool of those that are usable. It has no clock and no network."""

from collections.abc import Collection, Iterable, Iterator

import structlog
from google.protobuf.duration_pb2 import Duration

from penstock.chassis.durations import set_seconds
from penstock.mesh.v1.scheduler_pb2 import LoadReport
from penstock.picker.endpoints.endpoint import Endpoint, EndpointLimits, EndpointState
from penstock.picker.endpoints.load import EndpointLoad
from penstock.scheduler.fleet.placement import TYPICAL_PROMPT_TOKENS, LowestTtft
from penstock.scheduler.fleet.pool import Pool
from penstock.scheduler.fleet.worker import Worker

log = structlog.get_logger()

PLACED_TTL_S = 300.0  # s for which a prompt is expected in the cache of its endpoint, at least; twice as long at most


class EndpointFleet:
    """The endpoints by address. Events of their scrapes change their state; `expire` applies the passage of time."""

    def __init__(self, limits: EndpointLimits) -> None:
        self._limits = limits
        self.endpoints: dict[str, Endpoint] = {}
        self.pool = Pool(LowestTtft())
        self.models: frozenset[str] = frozenset()  # that the servers report
        self._prefixes_expire_at = PLACED_TTL_S

    def __repr__(self) -> str:
        return f"<EndpointFleet {len(self.pool)} of {len(self.endpoints)} usable>"

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self.endpoints.values())

    def usable(self, subset: Collection[str] | None) -> bool:
        """Whether an endpoint of `subset`, or any if it is None, is usable."""
        if subset is None:
            return len(self.pool) > 0
        return any((found := self.endpoints.get(each)) and found.is_usable for each in subset)

    def workers_of(self, subset: Collection[str] | None) -> Iterator[Worker]:
        """Yield the usable workers that a request may go to, least loaded first."""
        if subset is None:
            return self.pool.by_load()
        named = (self.endpoints.get(each) for each in subset)
        usable = [each.worker for each in named if each and each.is_usable]
        return iter(sorted(usable, key=lambda worker: (worker.used_share, worker.key)))

    def set_addresses(self, addresses: Iterable[str], now: float) -> None:
        """Replace the list. Requests at an endpoint that is removed run to their end."""
        present = set(addresses)
        for address in self.endpoints.keys() - present:
            endpoint = self.endpoints.pop(address)
            if endpoint.is_usable:
                self.pool.remove(endpoint.worker)
            log.info("endpoint_removed", endpoint=address)
        for address in sorted(present - self.endpoints.keys()):
            self.endpoints[address] = Endpoint(address, self._limits, answered_at=now)
            log.info("endpoint_added", endpoint=address)

    def on_load(self, address: str, load: EndpointLoad, held: int, now: float) -> None:
        """Apply a scrape. `held`: slots that requests of this picker held when it began."""
        if endpoint := self.endpoints.get(address):
            if not load.models <= self.models:
                self.models |= load.models
            endpoint.load, endpoint.loaded_at = load, now
            endpoint.held_at_load = max(held, endpoint.held)
            endpoint.worker.on_load_report(self._report(load))
            endpoint.on_answer(now)
            self._update(endpoint, now)

    def on_answer(self, address: str, now: float) -> None:
        """The endpoint answered, without a load that can be read."""
        if endpoint := self.endpoints.get(address):
            endpoint.on_answer(now)
            if endpoint.state_at(now) is not endpoint.state:
                self._update(endpoint, now)

    def on_refused(self, address: str, now: float) -> None:
        """The endpoint accepted no connection."""
        if endpoint := self.endpoints.get(address):
            endpoint.is_refusing = True
            self._update(endpoint, now)

    def expire(self, now: float) -> None:
        """Degrade endpoints whose load is too old, and stop using those that have not answered for too long."""
        for endpoint in self:
            if endpoint.state_at(now) is not endpoint.state:
                self._update(endpoint, now)
        if now >= self._prefixes_expire_at:
            self.pool.prefix_index.expire_placed()
            self._prefixes_expire_at = now + PLACED_TTL_S

    def _update(self, endpoint: Endpoint, now: float) -> None:
        before, endpoint.state = endpoint.state, endpoint.state_at(now)
        was_usable = before in {EndpointState.READY, EndpointState.DEGRADED}
        if was_usable and not endpoint.is_usable:
            self.pool.remove(endpoint.worker)
        elif endpoint.is_usable:
            profile = endpoint.profile()
            if profile != endpoint.worker.profile:
                self.pool.apply_profile(endpoint.worker, profile)
            if not was_usable:
                self.pool.add(endpoint.worker)
        if before is not endpoint.state:
            log.info("endpoint_state", endpoint=endpoint.address, state=endpoint.state, before=before)

    def _report(self, load: EndpointLoad) -> LoadReport:
        step = Duration()
        set_seconds(step, self._limits.decode_step)
        return LoadReport(
            running=load.requests,
            prefill_backlog_tokens=load.waiting * TYPICAL_PROMPT_TOKENS,
            prefill_tokens_per_second=self._limits.prefill_rate,
            step_time=step,
            decode_step_time=step,
        )
