"""The borders between the regions of a simulation: which region gets a request that its own has rejected."""

from collections.abc import Mapping

from penstock.chassis.errors import PenstockError
from penstock.edge.regions.spill import Offer, OfferClass, SpillPolicy
from penstock.simulator.mesh.edge.edge import SimEdge
from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.mesh.worker import MODEL
from penstock.simulator.regions.scenario import RegionsScenario


class SimBorder:
    """The border of one region. A frame reaches another region after `delay`."""

    def __init__(
        self, region: str, scenario: RegionsScenario, events: SimEventQueue, borders: Mapping[str, "SimBorder"]
    ) -> None:
        """`borders`: of all regions, in order of preference. They may be added later."""
        self.region = region
        self.edge: SimEdge
        self.is_lost = False
        self.offered = 0  # requests of this region, to other ones
        self.refused = 0  # of these offers
        self._delay = scenario.delay
        self._client_retry = scenario.client_retry
        self._events = events
        self._borders = borders
        names = [each.name for each in scenario.regions]
        self._policy = SpillPolicy([each for each in names if each != region])
        for each in names if scenario.spills else ():
            if each != region:
                self._policy.on_up(each)

    # The protocol `RegionBorder`.

    def offer(self, request: SimRequest) -> bool:
        now = self._events.now
        offer = _offer_of(request, now - request.submitted_at)
        region = self._policy.choose(offer, (), tried=request.offered_to, now=now)
        if region is None:
            return False
        self.offered += 1
        request.offered_to = (*request.offered_to, region)
        request.away = self._policy.trip(region) + offer.waited
        self.move(request, region)
        self._send(self._borders[region].edge.on_guest, request)
        return True

    def on_guest_rejected(self, request: SimRequest, error: PenstockError) -> None:
        self._send(self._borders[request.home].take_back, request, self.region, error)

    def recall(self, request: SimRequest) -> None:
        if request.is_guest:
            self.move(request, request.home)

    def redirect(self, request: SimRequest) -> bool:
        region = self._next_region() if self.is_lost and request.region == self.region else ""
        if region:
            self.move(request, region)
            at = self._events.now + self._client_retry
            self._events.schedule(at, self._borders[region].edge.take_over, request)
        return bool(region)

    def edge_of(self, request: SimRequest) -> SimEdge:
        return self._borders[request.region].edge

    # Called by other borders.

    def take_back(self, request: SimRequest, region: str, error: PenstockError) -> None:
        """Continue with a request of this region that `region` has rejected: offer it to the next one, or refuse it."""
        self.refused += 1
        now, trip = self._events.now, 2 * self._delay
        self._policy.on_answer(region, trip)
        self._policy.on_rejected(region, _offer_of(request, now - trip - request.submitted_at), error.retry_after, now)
        if request.has_ended or request.region != region:  # its client has left
            return
        self.move(request, self.region)
        self.edge.on_guest_returned(request, error)

    def move(self, request: SimRequest, region: str) -> None:
        """Let the edge of `region` have a request from now on."""
        if request.region != region:
            self._borders[request.region].edge.open_requests -= 1
            self._borders[region].edge.open_requests += 1
            request.region = region
        is_home = region == request.home
        request.trip = 0.0 if is_home else self._delay
        if is_home:
            request.away = 0.0

    # Loss of a region.

    def on_region_lost(self, region: str) -> None:
        if region != self.region:
            self._policy.on_down(region)

    def on_region_returned(self, region: str) -> None:
        if region != self.region:
            self._policy.on_up(region)

    def restore(self) -> None:
        """Serve requests again."""
        self.is_lost = False
        for border in self._borders.values():
            border.on_region_returned(self.region)

    def lose(self) -> None:
        """Let the clients of this region, which is lost, resume in the next one, and take its guests home."""
        self.is_lost = True
        for border in self._borders.values():
            border.on_region_lost(self.region)
        for request in self.edge.give_all():
            if request.home == self.region:
                self.redirect(request)
            else:
                self.move(request, request.home)
                self._send(self._borders[request.home].edge.take_over, request)

    def _next_region(self) -> str:
        """Return the region that serves the clients of this one while it is lost; empty if all are lost."""
        return next((name for name, each in self._borders.items() if not each.is_lost), "")

    def _send(self, callback: object, *frame: object) -> None:
        self._events.schedule_after(self._delay, callback, frame)  # type: ignore[arg-type]


def _offer_of(request: SimRequest, waited: float) -> Offer:
    return Offer(OfferClass(MODEL, request.priority), request.prompt_tokens, waited)
