"""The run table under any order of events of edges, a scheduler, an engine and the clock."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.runs import errors
from penstock.worker.runs.effects import AddSequence, CancelSequence, LeaseStarted, RunEnded, StepTokens
from penstock.worker.runs.leases import LeaseGrant, LeaseTable
from penstock.worker.runs.table import RunTable
from penstock.worker.scheduler_session.progress import ProgressReporter
from worker_runs import LIMITS, make_run


class AnyOrder(RuleBasedStateMachine):
    """Edges, a scheduler, an engine (the real batch) and the clock, in any order."""

    def __init__(self):
        super().__init__()
        self.table = RunTable(leases=LeaseTable("me"), lease_announce_timeout=1.0, max_parked=3)
        self.now = 0.0
        self.progress = ProgressReporter()
        self.ended = Counter()
        self.begun = []  # runs, as started
        self.sent = {}  # by run: indexes of the tokens sent
        self.started, self.released = Counter(), Counter()
        self.prompts, self.outputs = Counter(), Counter()  # reported, by lease
        self.leases_by_number = {}  # told on the present stream to the scheduler
        self.open, self.all_streams = set(), 0
        self.load()

    def load(self):
        pool = BlockPool(LIMITS.blocks, LIMITS.block_size)
        self.batch = Batch(pool=pool, policy=ContinuousBatching(token_budget=8), slots=3, context_length=64)
        self.perform(self.table.on_engine_ready(LIMITS, 0.0))

    def perform(self, effects):
        for effect in effects:
            if isinstance(effect, AddSequence):
                self.batch.add(effect.spec)
            elif isinstance(effect, CancelSequence):
                self.batch.cancel(effect.seq_id)
            elif isinstance(effect, StepTokens):
                self.note_tokens(effect)
            elif isinstance(effect, RunEnded):
                self.ended[effect.run] += 1  # an orphan is a run of its own
                assert effect.is_reported <= (effect.run.stream in self.open)
            elif isinstance(effect, LeaseStarted):
                self.started[effect.lease_id] += 1
            else:
                self.released.update(effect.lease_ids)
                assert {each.lease_id for each in effect.progress} <= set(effect.lease_ids)
                self.note_served(effect.progress)

    def note_served(self, served):
        for each in served:
            assert each.has_tokens
            assert each.prompt_tokens >= self.prompts[each.lease_id]
            self.prompts[each.lease_id] = each.prompt_tokens
            self.outputs[each.lease_id] = each.output_tokens

    def note_progress(self, report):
        self.note_served(progress for _, progress in report.leases)
        self.leases_by_number |= {number: progress.lease_id for number, progress in report.leases}
        for number, output_tokens in zip(report.lease_numbers, report.output_tokens, strict=True):
            lease_id = self.leases_by_number[number]
            assert output_tokens > self.outputs[lease_id]
            self.outputs[lease_id] = output_tokens

    def note_tokens(self, tokens):
        assert tokens.stream in self.open
        for handle, index in zip(tokens.handles, tokens.indexes, strict=True):
            run = self.table.streams.find(tokens.stream, handle) or self.finished_now(tokens.stream, handle)
            self.sent.setdefault(run, []).append(index)

    def finished_now(self, stream, handle):
        """The tokens precede the end, but the table has already removed the run from the stream."""
        runs = [run for run in self.begun if (run.stream, run.handle) == (stream, handle)]
        return runs[-1]

    @rule()
    def open_stream(self):
        self.all_streams += 1
        self.open.add(self.all_streams)
        self.table.streams.open(self.all_streams)

    @precondition(lambda self: self.open)
    @rule(pick=st.randoms())
    def close_stream(self, pick):
        stream = pick.choice(sorted(self.open))
        self.open.discard(stream)
        self.perform(self.table.close_stream(stream, self.now))

    @rule(number=st.integers(0, 12), worker=st.sampled_from(["me", "me", "me", "another"]))
    def expect(self, number, worker):
        self.perform(self.table.expect(f"l{number}", LeaseGrant(f"t{number}"), worker, self.now + 2.0, self.now))

    @rule(number=st.integers(0, 12))
    def revoke(self, number):
        self.perform(self.table.revoke(f"l{number}", self.now))

    @precondition(lambda self: self.open)
    @rule(
        pick=st.randoms(),
        number=st.integers(0, 12),
        handle=st.integers(1, 4),
        prompt=st.integers(0, 40),
        output=st.integers(1, 30),
        wait_s=st.sampled_from([0.0, 0.5, 3.0, float("inf")]),
    )
    def start(self, *, pick, number, handle, prompt, output, wait_s):
        run = make_run(
            self.table,
            handle=handle,
            lease=f"l{number}",
            ticket=f"t{number}",
            prompt=prompt,
            output=output,
            deadline=self.now + wait_s,
            stream=pick.choice(sorted(self.open)),
        )
        self.begun.append(run)
        self.perform(self.table.start(run, self.now))

    @precondition(lambda self: self.open)
    @rule(pick=st.randoms(), handle=st.integers(1, 4))
    def cancel(self, pick, handle):
        self.perform(self.table.cancel(pick.choice(sorted(self.open)), handle, self.now))

    @rule(passed=st.sampled_from([0.1, 1.0, 5.0]))
    def wait(self, passed):
        self.now += passed
        self.perform(self.table.expire(self.now))

    @rule()
    def step(self):
        if self.batch.has_work:
            plan = self.batch.plan()
            count = len(plan.sampled)
            result = self.batch.commit(plan, [5] * count, [0.0] * count)
            self.perform(self.table.on_step(result, self.now, self.now))

    @rule()
    def report_progress(self):
        running = [run.progress for run in self.table.running.values() if not run.is_orphan]
        if report := self.progress.take_due(running, self.now):
            self.note_progress(report)

    @rule()
    def attach_to_another_scheduler(self):
        self.progress.on_stream_opened()
        self.leases_by_number.clear()

    @rule(crashed=st.booleans(), wait_s=st.sampled_from([0.0, 0.0, 1.0, 60.0]))
    def lose_engine(self, crashed, wait_s):
        self.perform(self.table.on_engine_lost(errors.engine_died(), self.now, crashed=crashed))
        self.wait(wait_s)
        self.load()

    @invariant()
    def no_run_is_with_the_isolated_one_unless_it_was_cleared(self):
        isolation = self.table.quarantine.isolation
        assert bool(self.table.not_ready_error) == bool(isolation)
        assert not any(run in self.table.running.values() for run in isolation.waiting)
        assert isolation.isolated in (None, *self.table.running.values())
        assert not isolation or len(self.table.running) <= 1

    @invariant()
    def nothing_ends_twice(self):
        assert all(count == 1 for count in self.ended.values())

    @invariant()
    def tokens_come_in_order_and_once(self):
        assert all(indexes == list(range(len(indexes))) for indexes in self.sent.values())

    def teardown(self):
        self.perform(self.table.drain(self.now))
        for _ in range(2_000):
            self.step()
        self.wait(100.0)
        self.step()
        assert repr(self.table) == f"<RunTable 0 expected, 0 parked, 0 running on {len(self.open)} streams>"
        assert self.table.next_expiry is None
        assert not any(self.table.streams.runs_of(stream) for stream in self.open)
        assert self.batch.pool.used == 0
        assert {run for run in self.ended if not run.is_orphan} == set(self.begun)
        assert all(self.started[lease] == 1 for lease in self.started)
        assert set(self.started) <= set(self.released)
        assert sum(self.outputs.values()) == sum(run.tokens for run in self.begun)
        assert sum(self.prompts.values()) == sum(run.prefilled_tokens for run in self.begun)
        for run in self.begun:
            prompt = (run.original_spec or run.spec).token_ids
            assert run.prefilled_tokens == len(prompt) if run.tokens else run.prefilled_tokens <= len(prompt)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
