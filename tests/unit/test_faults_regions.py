"""Fault worlds of two regions: requests that the home queue rejects run elsewhere, over a link and peers that fail."""

from dataclasses import replace

import pytest

from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Failpoint
from penstock.faults.plan import FaultKind, PlannedFault, plan_for_seed
from penstock.faults.run import run_plan

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

RUN = "penstock.mesh.v1.RegionService/Run"
SEED = 3  # several requests leave their region
OFFER, STARTED, STEP = (
    Failpoint(RUN, TO_SERVER, "offer"),
    Failpoint(RUN, TO_CLIENT, "started"),
    Failpoint(RUN, TO_CLIENT, "step"),
)


def world(*faults, seed=SEED, late_share=0.0):
    """A world whose home queues let one ticket wait, while all requests arrive at once."""
    plan = plan_for_seed(seed)
    requests = tuple(replace(each, starts_at=0.0) for each in plan.requests)
    shape = plan.shape.with_other_region(max_depth=1)
    return run_plan(replace(plan, shape=shape, requests=requests, faults=faults, late_frame_share=late_share))


def fault(kind, failpoint, duration_s):
    return PlannedFault(
        kind=kind, duration_s=duration_s, victim_tier="edge", victim_pick=0.0, failpoint=failpoint, frame_number=1
    )


def test_requests_that_leave_their_region_are_answered_and_charged_once():
    result = world()
    assert result.violations == ()
    assert result.frames_by_failpoint[STARTED] >= 2


@pytest.mark.parametrize("failpoint", [OFFER, STARTED, STEP], ids=lambda each: each.kind)
def test_a_cut_of_60_s_between_regions_loses_nothing(failpoint):
    result = world(fault(FaultKind.PARTITION, failpoint, 60.0))
    assert result.violations == ()
    assert len(result.injected) == 1


@pytest.mark.parametrize("kind", [FaultKind.RESET, FaultKind.KILL, FaultKind.TERM, FaultKind.FREEZE])
def test_a_region_that_fails_in_the_middle_of_an_answer_loses_no_token(kind):
    result = world(fault(kind, STEP, 1.0), late_share=0.2)
    assert result.violations == ()
    assert len(result.injected) == 1
