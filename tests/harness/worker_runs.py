"""Runs of a worker's run table, made and driven by plain calls."""

from penstock.worker.engine.interface import (
    SequenceSpec,
    StepResult,
)
from penstock.worker.runs.effects import AddSequence, LeaseStarted, RunEnded
from penstock.worker.runs.leases import LeaseGrant, LeaseTable
from penstock.worker.runs.limits import RunLimits
from penstock.worker.runs.run import Run
from penstock.worker.runs.table import RunTable

LIMITS = RunLimits(context_length=64, vocab_size=100, blocks=16, block_size=4)
EDGE = 7


def ready_table(**options):
    table = RunTable(leases=LeaseTable("me"), **options)
    table.on_engine_ready(LIMITS, 0.0)
    table.streams.open(EDGE)
    return table


def make_run(
    table, *, handle=1, lease="l1", ticket="t1", prompt=3, output=4, deadline=float("inf"), stream=EDGE, **spec
):
    spec = SequenceSpec(seq_id=table.new_seq_id(), token_ids=list(range(prompt)), max_output_tokens=output, **spec)
    return Run(
        stream=stream, handle=handle, lease_id=lease, ticket_id=ticket, spec=spec, arrived_at=0.0, deadline=deadline
    )


def expect(table, lease="l1", ticket="t1", *, worker="me", lapses_at=5.0, now=0.0):
    return table.expect(lease, LeaseGrant(ticket, attempt=2, queue_id="q"), worker, lapses_at, now)


def started_run(table, **what):
    """A run that the engine has."""
    expect(table, what.get("lease", "l1"), what.get("ticket", "t1"))
    run = make_run(table, **what)
    assert table.start(run, 0.0) == [LeaseStarted(run.lease_id), AddSequence(run.spec)]
    return run


def rejection_reason(effects):
    """Reason of the one failure among `effects`."""
    [ended] = [each for each in effects if isinstance(each, RunEnded)]
    return ended.outcome.reason


def step_result(number, *runs, **more):
    return StepResult(
        number,
        seq_ids=[run.seq_id for run in runs],
        tokens=[10 + number] * len(runs),
        indexes=[run.tokens for run in runs],
        logprobs=[-0.5] * len(runs),
        **more,
    )
