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

OUTPUT_TOKENS = 6  # tokens
MOST_STEPS = 2_000


def reason_of(outcome):
    return outcome.reason if isinstance(outcome, PenstockError) else type(outcome).__name__


class QuarantineDriver:
    """A run table and its engines, which some runs crash: `poison` has the token of the crash by handle."""

    def __init__(self, poison):
        self.poison = poison
        self.table = RunTable(leases=LeaseTable("me"))
        self.table.streams.open(EDGE)
        self.outcomes = {}  # by handle: how its run ended
        self.crashes = Counter()  # by handle of the run that caused them
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
            seq_id=self.table.new_seq_id(),
            token_ids=[handle] * prompt,
            max_output_tokens=OUTPUT_TOKENS,
            ignore_eos=True,
        )
        run = Run(stream=EDGE, handle=handle, lease_id=lease, ticket_id=f"t{handle}", spec=spec, arrived_at=0.0)
        run.fingerprint = handle  # identifies the run once no stream waits for it
        self.perform(self.table.start(run, 0.0))

    def step(self):
        if not self.batch.has_work:
            return
        plan = self.batch.plan()
        runs = self.table.running
        crashing = {runs[each.spec.seq_id].fingerprint for each in plan.sampled if self.crashes_engine(each, runs)}
        if crashing:
            self.crashes.update(crashing)
            self.lose(crashed=True)
            return
        count = len(plan.sampled)
        self.perform(self.table.on_step(self.batch.commit(plan, [5] * count, [0.0] * count), 0.0, 0.0))

    def crashes_engine(self, sequence, runs):
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
        raise AssertionError(f"the table is not idle: {self.table}")


HANDLES = st.integers(1, 6)
START_EVENTS = st.tuples(st.just("start"), st.integers(1, 20))
OTHER_EVENTS = st.tuples(st.sampled_from(["step", "step", "step", "crash", "kill", "cancel"]), HANDLES)


def play(driver, events):
    handle = 0
    for what, number in events:
        if what == "start":
            handle += 1
            driver.start(handle, number)
        elif what == "step":
            driver.step()
        elif what == "cancel":
            driver.perform(driver.table.cancel(EDGE, number, 0.0))
        elif what == "kill" or not driver.would_confirm:  # a chance crash during isolation confirms the suspect
            driver.lose(crashed=what == "crash")
    driver.finish()


@settings(max_examples=400, deadline=None)
@given(
    poison=st.dictionaries(HANDLES, st.integers(0, OUTPUT_TOKENS - 1), max_size=3),
    events=st.lists(st.one_of(START_EVENTS, START_EVENTS, OTHER_EVENTS, OTHER_EVENTS, OTHER_EVENTS), max_size=40),
)
def test_poisonous_runs_crash_two_engines_of_one_worker_and_no_other_run_is_confirmed(poison, events):
    driver = QuarantineDriver(poison)
    play(driver, events)
    assert {handle for handle, end in driver.outcomes.items() if end == "ENGINE_CRASHED"} <= set(poison)
    assert all(count <= 2 for count in driver.crashes.values())
    assert all(driver.outcomes[handle] in ("ENGINE_CRASHED", "SequenceCancelled") for handle in driver.crashes), (
        "one left for another"
    )


@settings(max_examples=200, deadline=None)
@given(
    crashing_handle=HANDLES,
    poison_at=st.integers(0, OUTPUT_TOKENS - 1),
    prompts=st.lists(st.integers(1, 20), min_size=6, max_size=6),
)
def test_without_other_faults_one_run_is_confirmed_and_the_others_lose_only_time(crashing_handle, poison_at, prompts):
    driver = QuarantineDriver({crashing_handle: poison_at})
    play(driver, [("start", prompt) for prompt in prompts])
    assert driver.outcomes.pop(crashing_handle) == "ENGINE_CRASHED"
    assert driver.crashes == {crashing_handle: 2}
    assert driver.engines == 3
    assert set(driver.outcomes.values()) <= {"SequenceFinished", "ENGINE_DIED"}  # those continue on another worker
