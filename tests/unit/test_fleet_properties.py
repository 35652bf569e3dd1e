"""A fleet under random events: no request is lost or run twice, and all totals return to zero."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatch_mesh import MODEL
from fleet_mesh import KV_BLOCKS, SLOTS, FleetMesh
from penstock.edge.upstreams.hashing import shard_for
from penstock.queue.accounting import REPORT_TIMEOUT_S
from penstock.queue.policies.factory import PolicyConfig
from penstock.scheduler.reports.service_reports import ABSENT_QUEUE_TTL_S

TENANTS = [f"tenant-{number}" for number in range(6)]
TICKET_SIZES = [2, 16, 17, 64, 128]  # tokens; the last needs a whole worker
END_STATES = {"done", "left", "shed"}


class FleetMachine(RuleBasedStateMachine):
    """Shards, schedulers and workers start and stop, streams break, clients leave, leases expire."""

    @initialize(shards=st.integers(1, 3), schedulers=st.integers(1, 3), workers=st.integers(1, 3))
    def begin(self, shards, schedulers, workers):
        self.fleet = FleetMesh()
        self.made = 0
        self.ends = {}  # final state by request
        self.has_lost_a_scheduler = False  # with its pending reports
        for _ in range(shards):
            self.fleet.add_shard(self.name("q"), new_order=PolicyConfig())
        for _ in range(schedulers):
            self.fleet.add_scheduler(self.name("s"))
        for _ in range(workers):
            self.fleet.attach_worker(self.name("w"), min(self.fleet.schedulers))

    def name(self, kind):
        self.made += 1
        return f"{kind}{self.made}"

    def one_of(self, choose, found):
        return choose.draw(st.sampled_from(sorted(found)))

    def request(self, choose, *states):
        return self.fleet.requests[self.one_of(choose, [each.name for state in states for each in self.at(state)])]

    def at(self, state):
        return self.fleet.in_state(state)

    # Events of clients and the edge.

    @rule(tenant=st.sampled_from(TENANTS), priority=st.integers(1, 3), tokens=st.sampled_from(TICKET_SIZES))
    def add_request(self, tenant, priority, tokens):
        self.fleet.add_request(self.name("t"), tenant=tenant, priority=priority, tokens=tokens)

    @precondition(lambda self: self.at("waits") or self.at("holds") or self.at("runs"))
    @rule(choose=st.data())
    def leave(self, choose):
        self.fleet.cancel(self.request(choose, "waits", "holds", "runs"))

    @precondition(lambda self: self.at("holds"))
    @rule(choose=st.data())
    def start(self, choose):
        self.fleet.start_lease(self.request(choose, "holds"))

    @precondition(lambda self: self.at("runs"))
    @rule(choose=st.data())
    def complete(self, choose):
        self.fleet.complete(self.request(choose, "runs"))

    @rule(choose=st.data())
    def break_an_edges_stream(self, choose):
        self.fleet.reconnect_edge(self.one_of(choose, self.fleet.shards))

    # Events of the mesh.

    @precondition(lambda self: self.fleet.pending_directions)
    @rule(choose=st.data(), frames=st.integers(1, 8))
    def deliver(self, choose, frames):
        for _ in range(frames):
            if moving := self.fleet.pending_directions:
                self.fleet.deliver(*choose.draw(st.sampled_from(moving)))

    @rule(seconds=st.sampled_from([0.05, 0.1, 6.0]))
    def pass_time(self, seconds):
        self.fleet.pass_time(seconds)

    @rule(choose=st.data())
    def break_a_dispatch_stream(self, choose):
        key = self.one_of(choose, self.fleet.streams)
        self.fleet.disconnect(*key)
        self.fleet.connect(*key)

    @precondition(lambda self: len(self.fleet.scheduler_by_worker) < 5)
    @rule(choose=st.data())
    def add_a_worker(self, choose):
        self.fleet.attach_worker(self.name("w"), self.one_of(choose, self.fleet.schedulers))

    @precondition(lambda self: self.fleet.scheduler_by_worker)
    @rule(choose=st.data())
    def lose_a_worker(self, choose):
        self.fleet.lose_worker(self.one_of(choose, self.fleet.scheduler_by_worker))

    @precondition(lambda self: len(self.fleet.schedulers) > 1)
    @rule(choose=st.data())
    def lose_a_scheduler(self, choose):
        self.has_lost_a_scheduler = True
        self.fleet.lose_scheduler(self.one_of(choose, self.fleet.schedulers))

    @precondition(lambda self: len(self.fleet.schedulers) < 4)
    @rule()
    def add_a_scheduler(self):
        self.fleet.add_scheduler(self.name("s"))

    @precondition(lambda self: len(self.fleet.shards) < 4)
    @rule()
    def add_a_shard(self):
        """Check that tenants of other shards do not move."""
        before = {tenant: shard_for(self.fleet.shards, MODEL, tenant) for tenant in TENANTS}
        name = self.name("q")
        self.fleet.add_shard(name, new_order=PolicyConfig())
        now = {tenant: shard_for(self.fleet.shards, MODEL, tenant) for tenant in TENANTS}
        assert all(now[tenant] in {before[tenant], name} for tenant in TENANTS)

    @precondition(lambda self: len(self.fleet.shards) > 1)
    @rule(choose=st.data())
    def lose_a_shard(self, choose):
        """Check that requests of other shards do not move."""
        lost = self.one_of(choose, self.fleet.shards)
        before = {request.name: request.shard for request in self.fleet.requests.values()}
        moved = self.fleet.remove_shard(lost)
        assert all(before[request.name] == lost for request in moved)
        stayed = [request for request in self.fleet.requests.values() if request not in moved]
        assert all(request.shard == before[request.name] for request in stayed)

    # Invariants.

    @invariant()
    def waiting_requests_are_in_one_shard(self):
        for request in self.at("waits"):
            holders = [name for name, book in self.fleet.shards.items() if request.name in book.tickets]
            assert holders == [request.shard]
            assert self.fleet.shards[request.shard].tickets[request.name].attempt == request.attempt

    @invariant()
    def each_running_lease_belongs_to_one_request(self):
        running = [name for leases in self.fleet.running.values() for name in leases.values()]
        assert sorted(running) == sorted(request.name for request in self.at("runs"))

    @invariant()
    def ended_requests_stay_ended(self):
        for request in self.fleet.requests.values():
            if request.state in END_STATES:
                assert self.ends.setdefault(request.name, request.state) == request.state

    @invariant()
    def no_worker_promises_more_than_its_capacity(self):
        for scheduler in self.fleet.schedulers.values():
            for worker in scheduler.fleet:
                assert worker.promised_blocks == sum(worker.promised.values())
                assert worker.unstarted_tokens >= 0
                assert not worker.available_leases or worker.promised_blocks < KV_BLOCKS
                assert len(worker.promised) <= SLOTS

    @invariant()
    def books_count_what_is_there(self):
        for book in self.fleet.shards.values():
            there = [ticket for ticket in book.tickets.values() if not ticket.offered_to]
            assert book.model_queues.waiting == (len(there), sum(ticket.tokens for ticket in there))

    def charged(self):
        """Return the tickets that shards account as running."""
        return [ticket.ticket_id for book in self.fleet.shards.values() for ticket in book.accounting]

    def teardown(self):
        """With workers for tickets of any size, every request ends, and all totals return to zero."""
        fleet = self.fleet
        for scheduler in fleet.schedulers:
            fleet.attach_worker(self.name("w"), scheduler)
            fleet.attach_worker(self.name("w"), scheduler)
        fleet.run_to_end()
        assert {request.state for request in fleet.requests.values()} <= END_STATES
        self.ended_requests_stay_ended()
        for seconds in (
            ABSENT_QUEUE_TTL_S,
            ABSENT_QUEUE_TTL_S,
            REPORT_TIMEOUT_S,
        ):  # after which reports for absent shards and of lost leases expire
            fleet.settle()
            fleet.pass_time(seconds)
            fleet.settle()
            assert seconds != ABSENT_QUEUE_TTL_S or self.has_lost_a_scheduler or not self.charged()
        assert not self.charged()
        for book in fleet.shards.values():
            assert repr(book) == "<TicketBook 0 waiting, 0 offered, 0 placed>"
            assert (book.model_queues.waiting, book.model_queues.totals_by_tenant) == ((0, 0), {})
            assert not any(session.offered or +session.void_offers for session in book.schedulers.values())
        for scheduler in fleet.schedulers.values():
            assert (len(scheduler.leases), scheduler.leases.unstarted_count, scheduler.promised_blocks) == (0, 0, 0)
            assert len(scheduler.service_reports) == 0
            assert all(worker.unstarted_tokens == 0 for worker in scheduler.fleet)


TestFleet = FleetMachine.TestCase
TestFleet.settings = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)
