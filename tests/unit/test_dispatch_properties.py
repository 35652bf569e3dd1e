"""Ticket books with dispatchers: in any order of frames, tickets end once, in order, and no slot idles."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatch_mesh import CoreMesh, ticket_of
from penstock.queue.poison import REPORT_DELAY_S

TICKET_SIZES = [2, 16, 17, 64, 128]  # tokens
SLOTS, KV_BLOCKS = 2, 8


class DispatchMachine(RuleBasedStateMachine):
    """One to three shards, one or two schedulers, workers that attach and detach, streams that break."""

    @initialize(shards=st.integers(1, 3), schedulers=st.integers(1, 2))
    def begin(self, shards, schedulers):
        self.mesh = CoreMesh.of(shards, schedulers)
        self.tickets = {}
        self.shard_of = {}
        self.withdrawn = set()
        self.workers = 0
        for number in range(schedulers):
            self.attach_to(f"s{number}")

    def attach_to(self, scheduler):
        self.mesh.attach(f"w{self.workers}", scheduler, slots=SLOTS, kv_blocks=KV_BLOCKS)
        self.workers += 1

    @rule(choose=st.data(), priority=st.integers(1, 3), tokens=st.sampled_from(TICKET_SIZES), age=st.integers(0, 1_000))
    def enqueue(self, choose, priority, tokens, age):
        shard = choose.draw(st.sampled_from(sorted(self.mesh.shards)))
        avoid = (
            choose.draw(st.lists(st.sampled_from(sorted(self.mesh.scheduler_by_worker)), max_size=1))
            if self.mesh.scheduler_by_worker
            else []
        )
        name = f"t{len(self.tickets)}"
        ticket = ticket_of(name, priority=priority, tokens=tokens, age=age, avoid=avoid)
        self.tickets[name], self.shard_of[name] = ticket, shard
        self.mesh.enqueue(shard, ticket)

    @precondition(lambda self: self.tickets)
    @rule(choose=st.data())
    def withdraw(self, choose):
        name = choose.draw(st.sampled_from(sorted(self.tickets)))
        self.withdrawn.add(name)
        self.mesh.withdraw(self.shard_of[name], name)

    @precondition(lambda self: self.mesh.pending_directions)
    @rule(choose=st.data(), frames=st.integers(1, 6))
    def deliver(self, choose, frames):
        for _ in range(frames):
            if moving := self.mesh.pending_directions:
                self.mesh.deliver(*choose.draw(st.sampled_from(moving)))

    @precondition(lambda self: any(self.mesh.expected.values()))
    @rule(choose=st.data())
    def start(self, choose):
        self.mesh.start(*choose.draw(st.sampled_from(_leases(self.mesh.expected))))

    @precondition(lambda self: any(self.mesh.running.values()))
    @rule(choose=st.data())
    def finish(self, choose):
        self.mesh.finish(*choose.draw(st.sampled_from(_leases(self.mesh.running))))

    @rule(seconds=st.sampled_from([0.05, 0.1, 6.0]))
    def pass_time(self, seconds):
        self.mesh.pass_time(seconds)

    @precondition(lambda self: len(self.mesh.scheduler_by_worker) < 4)
    @rule(choose=st.data())
    def attach(self, choose):
        self.attach_to(choose.draw(st.sampled_from(sorted(self.mesh.schedulers))))

    @precondition(lambda self: self.mesh.scheduler_by_worker)
    @rule(choose=st.data())
    def lose_worker(self, choose):
        self.mesh.detach(choose.draw(st.sampled_from(sorted(self.mesh.scheduler_by_worker))))

    @rule(choose=st.data())
    def break_a_stream(self, choose):
        key = choose.draw(st.sampled_from(sorted(self.mesh.streams)))
        self.mesh.disconnect(*key)
        self.mesh.connect(*key)

    @rule()
    def no_slot_idles_while_a_fitting_ticket_waits(self):
        """This holds once all frames have arrived, report delays have passed and pauses have ended."""
        self.mesh.settle()
        self.mesh.pass_time(REPORT_DELAY_S)
        for _ in range(6):
            self.mesh.settle()
            self.mesh.pass_time(0.1)
        self.mesh.settle()
        waiting = [name for book in self.mesh.shards.values() for name, each in book.tickets.items()]
        able = [
            (name, worker.key)
            for name in waiting
            for scheduler in self.mesh.schedulers.values()
            for worker in scheduler.fleet
            if worker.can_take(self.tickets[name])
        ]
        assert not able

    @invariant()
    def no_worker_promises_more_than_its_capacity(self):
        for scheduler in self.mesh.schedulers.values():
            for worker in scheduler.fleet:
                assert worker.promised_blocks == sum(worker.promised.values()) <= KV_BLOCKS
                assert len(worker.promised) <= SLOTS
                assert worker.unstarted_tokens >= 0
            assert all(
                shard.held_tickets >= 0
                for credit in scheduler.credit_books.values()
                for shard in credit.shards.values()
            )

    @invariant()
    def workers_hold_exactly_their_promised_leases(self):
        for name, home in self.mesh.scheduler_by_worker.items():
            held = {**self.mesh.expected[name], **self.mesh.running[name]}
            assert held.keys() == self.mesh.schedulers[home].fleet[name].promised.keys()
            assert not [each for each in held.values() if name in self.tickets[each].avoid_workers]

    @invariant()
    def counts_are_what_is_there(self):
        for book in self.mesh.shards.values():
            there = [ticket for ticket in book.tickets.values() if not ticket.offered_to]
            assert book.model_queues.waiting == (len(there), sum(ticket.tokens for ticket in there))
            assert sum(load.tickets for load in book.model_queues.totals_by_tenant.values()) == len(there)
            assert (
                sum(load.tokens for load in book.model_queues.totals_by_tenant.values())
                == book.model_queues.waiting.tokens
            )

    @invariant()
    def no_ticket_ends_twice(self):
        assert all(len(endings) <= 1 for endings in self.mesh.endings.values())

    def teardown(self):
        """With workers for tickets of any size, every ticket ends once, and all totals return to zero."""
        for scheduler in self.mesh.schedulers:
            self.attach_to(scheduler)
        self.mesh.run_to_end(60.0)
        for name, endings in self.mesh.endings.items():
            assert len(endings) == 1 or (name in self.withdrawn and not endings), name
        for book in self.mesh.shards.values():
            assert not book.tickets
            assert book.model_queues.waiting == (0, 0)
            assert len(book.accounting) == 0
        for scheduler in self.mesh.schedulers.values():
            assert len(scheduler.service_reports) == 0
            assert (len(scheduler.leases), scheduler.leases.unstarted_count, scheduler.promised_blocks) == (0, 0, 0)
            assert all(worker.unstarted_tokens == 0 for worker in scheduler.fleet)


def _leases(held):
    return [(worker, lease) for worker, leases in held.items() for lease in leases]


TestDispatch = DispatchMachine.TestCase
TestDispatch.settings = settings(
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)


@settings(max_examples=60, deadline=None)
@given(
    keys=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 10_000)), min_size=1, max_size=25, unique=True),
    shards=st.integers(1, 3),
    schedulers=st.integers(1, 2),
    choose=st.randoms(use_true_random=False),
)
def test_every_released_slot_goes_to_the_best_ticket_of_all_shards(keys, shards, schedulers, choose):
    mesh = CoreMesh.of(shards, schedulers)
    for number in range(schedulers):
        mesh.attach(f"w{number}", f"s{number}", slots=1)
    mesh.settle()
    for number in range(schedulers):  # occupies the slot, so that the others wait
        mesh.enqueue("q0", ticket_of(f"first{number}", priority=1, age=20_000))
    mesh.settle()
    for priority, age in keys:
        name = f"{priority}/{age}"
        mesh.enqueue(f"q{choose.randrange(shards)}", ticket_of(name, priority=priority, age=age))
        if choose.random() < 0.5:
            mesh.settle()
    mesh.settle()
    while mesh.leased_tickets[-1:] != [] and any(mesh.expected.values()):
        mesh.finish(*choose.choice(_leases(mesh.expected)))
        mesh.settle()
    in_order = [f"{priority}/{age}" for priority, age in sorted(keys, key=lambda key: (key[0], -key[1]))]
    assert mesh.leased_tickets[schedulers:] == in_order


def test_a_declined_ticket_goes_to_a_scheduler_that_it_has_not_tried():
    mesh = CoreMesh.of(schedulers=2)
    mesh.attach("killer", "s0", slots=SLOTS + 1)  # the most credit, but refuses this ticket
    mesh.attach("busy", "s0", slots=0)
    mesh.attach("other", "s1", slots=1)
    mesh.settle()
    mesh.pass_time(REPORT_DELAY_S)
    mesh.enqueue("q0", ticket_of("t", avoid=["killer"]))
    mesh.settle()
    assert mesh.expected["other"] == {"s1-1": "t"}
