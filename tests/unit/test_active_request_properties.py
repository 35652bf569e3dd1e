"""Any order of events of an active request: one ending, one settlement, each token once."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from active_requests import (
    END_EFFECTS,
    RUN_TIMES,
    LetterDetokenizer,
    generation_plan,
    lease,
    new_active_request,
    token_effects,
)
from penstock.chassis.errors import (
    Aborted,
    InvalidArgument,
    Overloaded,
    QuotaExceeded,
    Unavailable,
)
from penstock.edge.lifecycle.effects import Accept, Emit, Enqueue, Finish, Offer, Settle, StartRun, Withdraw
from penstock.edge.lifecycle.record import RequestState
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, PRIORITY_BATCH

REGIONS = "us", "ap"


class AnyOrder(RuleBasedStateMachine):
    """Calls every event at any time, in any order and any number of times."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.request = new_active_request(spills=True)
        self.emitted = []
        self.endings = []
        self.settles = []
        self.was_admitted = False
        self.has_ticket = False  # a shard may hold one

    def take(self, effects):
        for effect in effects:
            if isinstance(effect, Emit):
                assert not self.endings, "text after the ending"
                assert effect.first_index == len(self.emitted)
                self.emitted += effect.token_ids
            self.endings += [effect] if isinstance(effect, END_EFFECTS) else []
            if isinstance(effect, Finish) and not effect.stop_string:
                assert len(self.request.embedding) == self.request.plan.embedding_size
            self.settles += [effect] if isinstance(effect, Settle) else []
            if isinstance(effect, Accept | StartRun):
                assert self.was_admitted, "a run or an acceptance before the reservation"
            if isinstance(effect, Enqueue | StartRun):
                assert not self.endings, "a ticket or a run after the ending"
            if isinstance(effect, Enqueue | StartRun | Withdraw):
                self.has_ticket = isinstance(effect, Enqueue)
            if isinstance(effect, Offer):
                assert self.was_admitted, "an offer before the reservation"
                self.offer()

    def offer(self):
        """Offer the request as its runner does: to a region, or to none once both have rejected it."""
        if len(self.request.offered_to) < len(REGIONS):
            self.request.on_offered(REGIONS[len(self.request.offered_to)], self.now)
        else:
            self.take(self.request.on_no_region())

    @initialize(stop=st.sampled_from(["", "d"]), early=st.booleans(), embedding_size=st.sampled_from([0, 0, 3]))
    def tokenize(self, stop, early, embedding_size):
        self.stop = stop
        plan = generation_plan(detokenizer=LetterDetokenizer(stop), embedding_size=embedding_size)
        self.take(self.request.on_tokenized(plan, self.now, enqueues_early=early))

    @rule(seconds=st.sampled_from([0.0, 0.5, 4.0, 10.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.take(self.request.tick(self.now))

    @rule(priority=st.sampled_from([0, PRIORITY_BATCH]))
    def admitted(self, priority):
        self.was_admitted |= self.request.state is RequestState.RESERVING
        self.take(self.request.on_admitted(Identity(priority=priority), "r1", self.now))

    @rule()
    def reservation_rejected(self):
        self.take(self.request.on_auth_rejected(QuotaExceeded(""), self.now))

    @rule(call=st.sampled_from(["on_auth_connected", "on_queued", "on_run_started"]))
    def event(self, call):
        self.take(getattr(self.request, call)())

    @rule()
    def queue_lost(self):
        self.has_ticket = False
        self.take(self.request.on_queue_lost())

    @rule()
    def no_queue_is_left(self):
        self.has_ticket = False
        self.take(self.request.on_no_queue(self.now))

    @rule(reason=st.sampled_from(["OVERLOADED", "NO_WORKER"]))
    def shed(self, reason):
        self.has_ticket = False
        self.take(self.request.on_queue_rejected(Unavailable("", reason=reason, retry_after=1.0), self.now))

    @rule()
    def rejected_for_load(self):
        self.has_ticket = False
        self.take(self.request.on_queue_rejected(Overloaded("", retry_after=1.0), self.now))

    @rule()
    def region_rejects(self):
        self.take(self.request.on_offer_rejected())

    @rule()
    def region_starts(self):
        self.take(self.request.on_region_started(self.now))

    @rule()
    def a_run_begins_in_another_region(self):
        self.admitted(0)
        self.rejected_for_load()
        self.region_starts()

    @rule(attempt=st.integers(1, 3), start=st.booleans())
    def leased(self, attempt, start):
        self.take(self.request.on_leased(lease(attempt, f"w{attempt}"), self.now))
        if start:
            self.take(self.request.on_run_started())

    @rule()
    def a_run_begins(self):
        """Starts a run in the regular order, so that later rules often meet a running request."""
        self.admitted(0)
        self.leased(self.request.attempt, start=True)

    @rule(offset=st.integers(-2, 1), count=st.integers(1, 3))
    @precondition(lambda self: self.was_admitted)
    def tokens(self, offset, count):
        start = max(0, len(self.request.output.token_ids) + offset)
        for index in range(start, start + count):
            self.take(token_effects(self.request, index, ord("a") + index, self.now))

    @rule(died=st.booleans())
    def worker_lost(self, died):
        self.take(self.request.on_worker_lost(self.now, died=died))

    @rule(embedding=st.sampled_from([(), (1.0, 0.0, 0.0)]))
    def finished(self, embedding):
        self.take(self.request.on_run_finished(FINISH_REASON_LENGTH, 1, 1, RUN_TIMES, self.now, embedding=embedding))

    @rule()
    def stopped(self):
        self.take(self.request.on_run_stopped(2, 1, RUN_TIMES, self.now))

    @rule(error=st.sampled_from([Aborted("", reason="LEASE_LOST"), InvalidArgument("")]))
    def run_rejected(self, error):
        self.take(self.request.on_run_rejected(error, self.now))

    @rule()
    def client_left(self):
        self.take(self.request.on_client_cancelled(self.now))

    @invariant()
    def nothing_happens_twice(self):
        assert len(self.endings) <= 1
        assert len(self.settles) <= 1
        assert self.emitted == [ord("a") + index for index in range(len(self.emitted))]
        assert self.request.state is not RequestState.DONE or self.endings
        assert not (self.endings and self.has_ticket), "a ticket of a request that has ended"
        assert self.request.next_tick_at >= self.now or not self.request.is_done

    def teardown(self):
        for _ in range(20):  # time alone ends every request
            self.now += 1_000.0
            self.take(self.request.tick(self.now))
        assert self.request.is_done
        assert len(self.endings) == 1
        assert len(self.settles) == self.was_admitted


AnyOrder.TestCase.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)
test_any_order_of_events_ends_and_settles_a_request_once_and_emits_each_token_once = AnyOrder.TestCase
