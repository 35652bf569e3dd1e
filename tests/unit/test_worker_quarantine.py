"""Confirmed causes of engine crashes, with any runs side by side and any other events of engines and edges."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.chassis.errors import PenstockError
from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.runs import errors
from penstock.worker.runs.effects import AddSequence, CancelSequence, RunEnded
from penstock.worker.runs.leases import LeaseGrant, LeaseTable
from penstock.worker.runs.run import Run
from penstock.worker.runs.table import RunTable
from worker_runs import EDGE, LIMITS

OUTPUT = 6  # tokens
MOST_STEPS = 2_000


def reason_of(outcome):
    return outcome.reason if isinstance(outcome, PenstockError) else type(outcome).__name__


class Bench:
    """A run table and its engines, which some runs crash: `poison` has the token of the crash by handle."""

    def __init__(self, poison):
        self.poison = poison
        self.table = RunTable(leases=LeaseTable("me"))
        self.table.streams.open(EDGE)
        self.outcomes = {}  # by handle: how its run ended
        self.crashes = Counter()  # by handle of who did it
        self.engines = 0
        self.load()

    def load(self):
        pool = BlockPool(LIMITS.blocks, LIMITS.block_size)
        self.batch = Batch(pool=pool, policy=ContinuousBatching(token_budget=8), slots=3, context_length=64)
        self.engines += 1
        self.perform(self.table.on_engine_ready(LIMITS, 0.0))

    def perform(self, effects):
        for effect in effects:
            if isinstance(effect, AddSequence):
                self.batch.add(effect.spec)
            elif isinstance(effect, CancelSequence):
                self.batch.cancel(effect.seq_id)
            elif isinstance(effect, RunEnded) and not effect.run.is_orphan:
                assert effect.run.handle not in self.outcomes
                self.outcomes[effect.run.handle] = reason_of(effect.outcome)

    def start(self, handle, prompt):
        lease = f"l{handle}"
        self.table.expect(lease, LeaseGrant(f"t{handle}"), "me", 5.0, 0.0)
        spec = SequenceSpec(
            seq_id=self.table.new_seq_id(), token_ids=[handle] * prompt, max_output_tokens=OUTPUT, ignore_eos=True
        )
        run = Run(stream=EDGE, handle=handle, lease_id=lease, ticket_id=f"t{handle}", spec=spec, arrived_at=0.0)
        run.fingerprint = handle  # which is what is left of it once nobody waits for it
        self.perform(self.table.start(run, 0.0))

    def step(self):
        if not self.batch.has_work:
            return
        plan = self.batch.plan()
        runs = self.table.running
        culprits = {runs[each.spec.seq_id].fingerprint for each in plan.sampled if self.is_deadly(each, runs)}
        if culprits:
            self.crashes.update(culprits)
            self.lose(crashed=True)
            return
        count = len(plan.sampled)
        self.perform(self.table.on_step(self.batch.commit(plan, [5] * count, [0.0] * count), 0.0, 0.0))

    def is_deadly(self, sequence, runs):
        run = runs.get(sequence.spec.seq_id)
        return run is not None and run.tokens == self.poison.get(run.fingerprint)

    def lose(self, *, crashed):
        self.perform(self.table.on_engine_lost(errors.engine_died(), 0.0, crashed=crashed))
        self.load()

    @property
    def would_confirm(self):
        """Whether a crash of the engine would confirm a run."""
        tried = self.table.quarantine.isolation.isolated
        return tried is not None and self.table.quarantine.isolation.find_culprit([tried]) is tried

    def finish(self):
        for _ in range(MOST_STEPS):
            if self.table.is_idle:
                return
            self.step()
        raise AssertionError(f"never came to rest: {self.table}")


HANDLES = st.integers(1, 6)
STARTS = st.tuples(st.just("start"), st.integers(1, 20))
OTHERS = st.tuples(st.sampled_from(["step", "step", "step", "crash", "kill", "cancel"]), HANDLES)


def play(bench, events):
    handle = 0
    for what, number in events:
        if what == "start":
            handle += 1
            bench.start(handle, number)
        elif what == "step":
            bench.step()
        elif what == "cancel":
            bench.perform(bench.table.cancel(EDGE, number, 0.0))
        elif what == "kill" or not bench.would_confirm:  # one that crashes by chance under a suspect convicts it
            bench.lose(crashed=what == "crash")
    bench.finish()


@settings(max_examples=400, deadline=None)
@given(
    poison=st.dictionaries(HANDLES, st.integers(0, OUTPUT - 1), max_size=3),
    events=st.lists(st.one_of(STARTS, STARTS, OTHERS, OTHERS, OTHERS), max_size=40),
)
def test_poisonous_runs_crash_two_engines_of_one_worker_and_no_other_run_is_confirmed(poison, events):
    bench = Bench(poison)
    play(bench, events)
    assert {handle for handle, end in bench.outcomes.items() if end == "ENGINE_CRASHED"} <= set(poison)
    assert all(count <= 2 for count in bench.crashes.values())
    assert all(bench.outcomes[handle] in ("ENGINE_CRASHED", "SequenceCancelled") for handle in bench.crashes), (
        "one left for another"
    )


@settings(max_examples=200, deadline=None)
@given(
    culprit=HANDLES, poison_at=st.integers(0, OUTPUT - 1), prompts=st.lists(st.integers(1, 20), min_size=6, max_size=6)
)
def test_without_other_faults_one_run_is_confirmed_and_the_others_lose_only_time(culprit, poison_at, prompts):
    bench = Bench({culprit: poison_at})
    play(bench, [("start", prompt) for prompt in prompts])
    assert bench.outcomes.pop(culprit) == "ENGINE_CRASHED"
    assert bench.crashes == {culprit: 2}
    assert bench.engines == 3
    assert set(bench.outcomes.values()) <= {"SequenceFinished", "ENGINE_DIED"}  # the latter go on elsewhere
