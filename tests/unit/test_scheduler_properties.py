"""In any order of events, the dispatcher promises only free capacity and loses no lease."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatch_mesh import BLOCK_TOKENS, LEASE_TTL_S, MODEL, START_UNIX_S, profile_of, ticket_of
from penstock.mesh.v1.queue_pb2 import Head
from penstock.mesh.v1.scheduler_pb2 import LoadReport, PrefixCacheUpdate, Progress, ServedLease
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.effects import Decline, Expect, Place, Revoke, SendServiceReport
from penstock.scheduler.leases import LeaseBook
from scheduler_calls import NOW, progress

QUEUES = ["q1", "q2"]
WORKERS = ["w1", "w2", "w3"]
SLOTS, KV_BLOCKS = 2, 8


class DispatcherMachine(RuleBasedStateMachine):
    """Shards may also offer without credit, withdraw unknown tickets and return credit that they do not hold."""

    @initialize(look_ahead=st.integers(0, 1))
    def begin(self, look_ahead):
        self.scheduler = Dispatcher(leases=LeaseBook(ttl=LEASE_TTL_S, prefix="s"), look_ahead=look_ahead)
        self.look_ahead = look_ahead
        self.now = START_UNIX_S
        self.streams = 0
        self.issued = set()
        self.placed = set()  # shard, ticket and attempt
        self.ended = {}  # latest report, by shard, ticket and attempt
        self.perform(self.scheduler.on_queue_connected("q1"))
        self.perform(self.scheduler.on_queue_connected("q2"))

    def perform(self, effects):
        for effect in effects:
            if isinstance(effect, Expect):
                assert effect.lease.lease_id not in self.issued
                self.issued.add(effect.lease.lease_id)
            elif isinstance(effect, Place):
                self.placed.add((effect.queue, effect.lease.ticket_id, effect.lease.attempt))
            elif isinstance(effect, Revoke):
                assert effect.lease_id in self.issued
            elif isinstance(effect, SendServiceReport):
                self.ended |= {(effect.queue, each.ticket_id, each.attempt): each.ended for each in effect.tickets}
        return effects

    @rule(
        queue=st.sampled_from(QUEUES),
        name=st.integers(0, 5),
        tokens=st.sampled_from([2, 16, 64, 128, 129]),
        attempt=st.integers(1, 3),
        avoid=st.lists(st.sampled_from(WORKERS), max_size=2),
    )
    def offer(self, queue, name, tokens, attempt, avoid):
        ticket = ticket_of(f"t{name}", tokens=tokens, attempt=attempt, avoid=avoid)
        ticket.prefix_hashes.extend(range(1, 1 + (tokens - 1) // BLOCK_TOKENS))
        effects = self.perform(self.scheduler.on_offer(queue, ticket, self.now))
        answers = [effect for effect in effects if isinstance(effect, Place | Decline)]
        assert len(answers) == 1
        if isinstance(answers[0], Place):
            assert answers[0].lease.worker_id not in avoid

    @rule(queue=st.sampled_from(QUEUES), name=st.integers(0, 5))
    def reclaim_credit(self, queue, name):
        self.perform(self.scheduler.on_offer_withdrawn(queue, [f"t{name}"]))

    @rule(queue=st.sampled_from(QUEUES), waiting=st.integers(0, 5), priority=st.integers(1, 3))
    def head(self, queue, waiting, priority):
        self.perform(self.scheduler.on_head(queue, Head(model=MODEL, waiting=waiting, priority=priority), NOW))

    @rule(queue=st.sampled_from(QUEUES), tickets=st.integers(0, 5))
    def returned(self, queue, tickets):
        self.perform(self.scheduler.on_credit_returned(queue, MODEL, tickets))

    @rule(queue=st.sampled_from(QUEUES))
    def break_the_stream_of_a_queue(self, queue):
        self.perform(self.scheduler.on_queue_disconnected(queue))
        self.perform(self.scheduler.on_queue_connected(queue))

    @rule(worker=st.sampled_from(WORKERS))
    def attach(self, worker):
        """Attach a worker with all leases that ran on its former stream."""
        former = self.scheduler.fleet.by_worker_id(worker)
        running = {}
        if former:
            unstarted = {entry.lease_id for entry in self.scheduler.leases.unstarted_on_worker(worker)}
            running = {each: blocks for each, blocks in former.promised.items() if each not in unstarted}
        self.streams += 1
        profile = profile_of(slots=SLOTS, kv_blocks=KV_BLOCKS, running=running)
        for each in profile.running:
            entry = self.scheduler.leases.leases[each.lease_id]
            each.ticket_id, each.attempt, each.queue_id = entry.ticket_id, entry.attempt, entry.queue
        self.perform(self.scheduler.on_worker_attached(f"{worker}/{self.streams}", worker, f"{worker}:1", profile))

    @precondition(lambda self: len(self.scheduler.fleet))
    @rule(choose=st.data())
    def lose_worker(self, choose):
        self.perform(
            self.scheduler.on_worker_lost(choose.draw(st.sampled_from([each.key for each in self.scheduler.fleet])))
        )

    @precondition(lambda self: self.issued and len(self.scheduler.fleet))
    @rule(
        choose=st.data(),
        does=st.sampled_from(["start", "progress", "output", "release"]),
        tokens=st.integers(0, 9),
        number=st.integers(0, 3),
    )
    def send_lease_frame(self, choose, does, tokens, number):
        """Send a frame of a worker about any lease."""
        worker = self.one_of_the_workers(choose)
        lease_id = choose.draw(st.sampled_from(sorted(self.issued)))
        served = [ServedLease(lease_id=lease_id, prompt_tokens=tokens, output_tokens=tokens, number=number)]
        if does == "start":
            self.scheduler.on_lease_started(worker, lease_id)
        elif does == "progress":
            self.scheduler.on_progress(worker, progress(*served))
        elif does == "output":
            self.scheduler.on_progress(worker, Progress(lease_numbers=[number], output_tokens=[tokens]))
        else:
            self.perform(self.scheduler.on_leases_released(worker, [lease_id], served))

    @precondition(lambda self: len(self.scheduler.fleet))
    @rule(choose=st.data(), changes=st.tuples(*[st.lists(st.integers(1, 4))] * 2), is_snapshot=st.booleans())
    def change_cache(self, choose, changes, is_snapshot):
        added, removed = changes
        worker = self.one_of_the_workers(choose)
        self.scheduler.on_prefix_cache_update(
            worker, PrefixCacheUpdate(added=added, removed=removed, is_snapshot=is_snapshot)
        )
        self.scheduler.on_load_report(worker, LoadReport(prefill_backlog_tokens=sum(added), running=len(removed)))

    def one_of_the_workers(self, choose):
        return choose.draw(st.sampled_from([each.key for each in self.scheduler.fleet]))

    @rule(seconds=st.sampled_from([0.1, 1.0, LEASE_TTL_S]))
    def pass_time(self, seconds):
        self.now += seconds
        self.perform(self.scheduler.tick(self.now))

    @invariant()
    def promises_fit_the_kv_pool(self):
        for worker in self.scheduler.fleet:
            assert worker.promised_blocks == sum(worker.promised.values()) <= KV_BLOCKS
            assert len(worker.promised) <= SLOTS + self.look_ahead

    @invariant()
    def unstarted_leases_are_promised_on_their_workers(self):
        leases = self.scheduler.leases
        for entry in leases.leases.values():
            if worker := self.scheduler.fleet.get(entry.worker):
                assert worker.promised[entry.lease_id] == entry.kv_blocks
        for worker in self.scheduler.fleet:
            waiting = [entry.prompt_tokens for entry in leases.unstarted_on_worker(worker.worker_id)]
            assert worker.unstarted_tokens == sum(waiting)

    @invariant()
    def credit_is_never_negative(self):
        shards = [shard for credit in self.scheduler.credit_books.values() for shard in credit.shards.values()]
        assert all(shard.held_tickets >= 0 and shard.held_tokens >= 0 for shard in shards)

    @invariant()
    def totals_match_the_workers(self):
        for pool in self.scheduler.fleet.pools.values():
            totals = pool.totals
            assert totals.available_leases == sum(worker.available_leases for worker in pool)
            assert totals.free_tokens == sum(
                (KV_BLOCKS - each.promised_blocks) * BLOCK_TOKENS for each in pool if each.available_leases
            )
            assert (totals.slots, totals.open_workers) == (
                SLOTS * len(pool),
                sum(worker.available_leases > 0 for worker in pool),
            )
            assert pool.max_ticket_tokens == max(worker.max_ticket_tokens for worker in pool)

    def teardown(self):
        scheduler = self.scheduler
        self.perform(scheduler.tick(self.now + LEASE_TTL_S))
        for worker in scheduler.fleet:
            self.perform(scheduler.on_leases_released(worker.key, list(worker.promised)))
        self.perform(scheduler.tick(self.now + LEASE_TTL_S))
        assert (len(scheduler.leases), scheduler.leases.unstarted_count, scheduler.promised_blocks) == (0, 0, 0)
        assert self.ended == dict.fromkeys(self.placed, True)
        assert len(scheduler.service_reports) == 0
        for worker in list(scheduler.fleet):
            self.perform(scheduler.on_worker_lost(worker.key))
        assert not scheduler.fleet.pools


TestDispatcher = DispatcherMachine.TestCase
TestDispatcher.settings = settings(max_examples=100, stateful_step_count=30, deadline=None, report_multiple_bugs=False)
