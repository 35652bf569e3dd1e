"""Events of a request between two regions: at home, once its queue has rejected it, and as a guest elsewhere."""

from penstock.chassis.errors import PenstockError
from penstock.edge.lifecycle.attempts import Attempt
from penstock.edge.lifecycle.effects import Effect, Offer
from penstock.edge.lifecycle.output import GenerationPlan, OutputStream
from penstock.edge.lifecycle.record import RequestState
from penstock.edge.lifecycle.transitions import RequestTransitions
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.ticket_pb2 import Lease


def run_name(region: str) -> str:
    """Return the name by which a run in another region is recorded in the place of a worker."""
    return f"region:{region}"


class RegionEvents(RequestTransitions):
    """Offers to other regions. A run there has the same events as one of a worker, except its start."""

    # Of the class, because nearly all requests have no others.
    offered_to: tuple[str, ...] = ()  # regions, since the queue last rejected the request
    _rejection: PenstockError | None = None  # of the queue, while other regions are asked

    # At home.

    def _offer(self, rejection: PenstockError) -> list[Effect]:
        self._rejection, self.offered_to = rejection, ()
        self._enter(RequestState.OFFERED)
        return [Offer()]

    def on_offered(self, region: str, now: float) -> None:
        """The offer was sent to a region."""
        self.offered_to = (*self.offered_to, region)
        self._enter(RequestState.OFFERED, timeout_at=now + self._limits.offer_timeout)

    def on_offer_rejected(self) -> list[Effect]:
        """The region has rejected the request, or has not answered in time: ask the next one."""
        if self.state is not RequestState.OFFERED:
            return []
        self._enter(RequestState.OFFERED)
        return [Offer()]

    def on_no_region(self) -> list[Effect]:
        """No other region may run the request: it ends in the rejection of the queue."""
        if self.state is not RequestState.OFFERED:
            return []
        assert self._rejection, "a request is offered after a rejection"
        return self._end_in_error(self._rejection, "shed")

    def on_region_started(self, now: float) -> list[Effect]:
        """The queue of the region has admitted the request, whose tokens follow."""
        if self.state is not RequestState.OFFERED:
            return []
        self.worker_id = run_name(self.offered_to[-1])
        lease = Lease(ticket_id=self.ticket_id, worker_id=self.worker_id, attempt=self.attempt, model=self.model_key)
        self._current_attempt = Attempt(lease, self.output_tokens, now)
        self.was_queued, self._rejection = True, None
        self._enter(RequestState.RUNNING)
        return self._accept()

    # As a guest.

    def on_guest(self, plan: GenerationPlan, identity: Identity, now: float) -> list[Effect]:
        """Enqueue a request that its home region has authenticated, planned and reserved."""
        assert self.state is RequestState.TOKENIZING, "a guest begins with this event"
        self._plan, self._output = plan, OutputStream(plan)
        self.identity, self.enqueued_at = identity, now
        return self._enqueue()
