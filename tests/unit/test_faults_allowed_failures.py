"""Failures are allowed while all processes of a tier are down, after their peers have waited."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import RetryPolicy
from penstock.edge.config import EdgeConfig
from penstock.faults.checks.allowed_failures import (
    PATIENCE_S,
    RECOVERY_S,
    Interval,
    allowed_failures,
    merge_overlapping,
    simultaneous,
)
from penstock.faults.mutations import CLIENT_BUFFER_BYTES, plan_world
from penstock.faults.plan import FaultKind, PlannedFault, PlannedRequest
from penstock.faults.run import run_plan
from penstock.faults.world.tiers import MeshShape
from penstock.queue.config import QueueConfig

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

LONG_STOP_S = PATIENCE_S + RECOVERY_S + 10.0
TIMES_S = st.floats(0.0, 50.0)
INTERVALS = st.lists(st.tuples(TIMES_S, TIMES_S).map(lambda pair: Interval(min(pair), max(pair))), max_size=5)


def found(harmed=None, **absences):
    return allowed_failures(lambda tier: absences.get(tier, [[]]), harmed or {})


@pytest.mark.parametrize(
    ("tier", "reason"),
    [("queue", "QUEUE_LOST"), ("worker", "NO_WORKER"), ("scheduler", "NO_WORKER"), ("edge", "CONNECTION_LOST")],
)
def test_a_tier_that_is_down_allows_its_own_reason_after_its_peers_have_waited(tier, reason):
    allowed = found(**{tier: [[Interval(5.0, 5.0 + LONG_STOP_S)]]})
    assert allowed[reason] == [Interval(5.0 + PATIENCE_S, 5.0 + LONG_STOP_S + RECOVERY_S)]
    assert not any(spans for other, spans in allowed.items() if other != reason)


def test_a_process_that_stayed_up_allows_no_failure():
    assert found(queue=[[Interval(5.0, 5.0 + LONG_STOP_S)], []])["QUEUE_LOST"] == []


def test_a_recovery_within_the_patience_allows_no_failure():
    assert found(queue=[[Interval(5.0, 5.0 + PATIENCE_S)]])["QUEUE_LOST"] == []
    assert found(queue=[[Interval(5.0, 5.1 + PATIENCE_S)]])["QUEUE_LOST"] == [Interval(15.0, 16.1)]


def test_downtimes_of_workers_and_schedulers_add_up():
    half = PATIENCE_S * 0.6
    allowed = found(worker=[[Interval(0.0, half)]], scheduler=[[Interval(half, 2 * half)]])
    assert allowed["NO_WORKER"] == [Interval(PATIENCE_S, 2 * half + RECOVERY_S)]


def test_auth_and_the_disk_allow_failures_from_the_start():
    allowed = found({"auth": [Interval(1.0, 2.0)], "disk": [Interval(3.0, 3.5)]})
    assert allowed["AUTH_LOST"] == [Interval(1.0, 2.0 + RECOVERY_S), Interval(3.0, 3.5 + RECOVERY_S)]
    assert allowed["STORE_UNAVAILABLE"] == [Interval(3.0, 3.5 + RECOVERY_S)]


@given(st.lists(INTERVALS, min_size=1, max_size=4), st.lists(TIMES_S, max_size=20))
def test_all_processes_are_down_when_each_of_them_is(absences, moments):
    away = simultaneous(absences)
    for moment in moments:
        each = [any(span.since <= moment <= span.until + RECOVERY_S for span in spans) for spans in absences]
        ends = {end for spans in absences for span in spans for end in (span.since, span.until + RECOVERY_S)}
        if moment not in ends:  # intervals of zero length belong to no absence
            assert any(moment in span for span in away) == all(each)


@given(INTERVALS)
def test_merged_intervals_do_not_touch(spans):
    together = merge_overlapping(spans)
    assert all(one.until < other.since for one, other in pairwise(together))
    assert merge_overlapping([*together, *spans]) == together


def test_the_patience_of_the_checks_is_that_of_the_tiers():
    planned = QueueConfig().unavailable_model_timeout, RetryPolicy().connect_timeout
    assert planned == (PATIENCE_S, PATIENCE_S)
    assert EdgeConfig().upstream_timeout >= PATIENCE_S


def test_a_world_waits_for_a_request_that_continues_after_a_long_freeze():
    request = PlannedRequest(
        starts_at=0.1,
        prompt=(1, 2, 3),
        max_output_tokens=28,
        seed=None,
        ignore_eos=True,
        stall_after_tokens=3,
        stall_s=8.0,
    )
    planned = replace(
        plan_world(3),
        requests=(request,),
        token_counts=(),
        shape=MeshShape(edges=1, queues=1, response_buffer_bytes=CLIENT_BUFFER_BYTES),
    )
    frozen = PlannedFault(
        kind=FaultKind.FREEZE, duration_s=PATIENCE_S * 5.5, victim_tier="queue", victim_pick=0.0, at=0.05
    )
    outcome = run_plan(replace(planned, faults=(frozen,)))
    assert outcome.injected
    assert outcome.violations == ()


def test_a_world_waits_for_a_fault_after_all_answers():
    without_faults = replace(plan_world(3), requests=(), token_counts=(), faults=())
    late = PlannedFault(kind=FaultKind.FREEZE, duration_s=35.0, victim_tier="queue", victim_pick=0.0, at=0.3)
    outcome = run_plan(replace(without_faults, faults=(late,)))
    assert outcome.injected
    assert outcome.violations == ()
