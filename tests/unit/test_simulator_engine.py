"""The fast engine model makes the same steps as the exact one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.simulator.mesh.engine import ExactEngine, SimRun
from penstock.simulator.mesh.fast_engine import FastEngine
from penstock.simulator.scenario import WorkerKind
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.simulated.step_time import StepTimeModel

STEP_TIME = StepTimeModel(per_context_token_s=0.001, per_prefill_context_token_s=0.0001)

Shape = st.tuples(
    st.integers(1, 60),  # prompt
    st.integers(1, 12),  # output
    st.integers(0, 8),  # declared beyond it
    st.integers(0, 25),  # steps until it arrives
    st.none() | st.integers(0, 20),  # steps after which it is cancelled
    st.integers(0, 2),  # its rank
)


def facts(run: SimRun) -> tuple[int, int, int, int]:
    return run.run_id, run.prefilled_tokens, run.first_token_step, run.last_token_step


def run_shapes(engine, kind, shapes):
    """Feed `shapes` as far as their blocks can be promised; return what each step did."""
    runs = [
        SimRun(number, "a", prompt, output, output + more, prefill_rank=rank)
        for number, (prompt, output, more, *_, rank) in enumerate(shapes)
    ]
    blocks = {run.run_id: -(-(run.prompt_tokens + run.max_output_tokens) // kind.block_size) for run in runs}
    here, added, log = {}, {}, []
    pending = [(run, shape[3], shape[4]) for run, shape in zip(runs, shapes, strict=True)]
    for step in range(2_000):
        for entry in list(pending):
            run, wait, _ = entry
            if step >= wait and sum(blocks[each] for each in here) + blocks[run.run_id] <= kind.kv_blocks:
                engine.add(run)
                pending.remove(entry)
                here[run.run_id], added[run.run_id] = run, step
        for run, (*_, leave, _) in zip(runs, shapes, strict=True):
            if run.run_id in here and leave is not None and step == added[run.run_id] + leave:
                engine.cancel(run)
        if not engine.has_work and not pending:
            return log, [facts(run) for run in runs]
        occupancy = engine.occupancy()
        stepped = engine.step()
        for run in (*stepped.finished, *stepped.cancelled):
            del here[run.run_id]
        ended = sorted(map(facts, stepped.finished)), sorted(map(facts, stepped.cancelled))
        log.append((occupancy, round(stepped.duration, 9), stepped.prefill_tokens, stepped.decode_seqs, *ended))
    raise AssertionError("the engine does not become idle")


@settings(max_examples=300, deadline=None)
@given(st.lists(Shape, min_size=1, max_size=14), st.integers(1, 6), st.integers(20, 60), st.sampled_from([4, 16, 64]))
def test_the_fast_engine_makes_the_steps_of_the_exact_one(shapes, slots, kv_blocks, token_budget):
    kind = WorkerKind(
        slots=slots,
        kv_blocks=kv_blocks,
        block_size=4,
        batching=ContinuousBatching(token_budget=token_budget),
        step_time=STEP_TIME,
    )
    fast = run_shapes(FastEngine(kind), kind, shapes)
    exact = run_shapes(ExactEngine(kind), kind, shapes)
    assert fast == exact
