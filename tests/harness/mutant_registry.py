"""Mutants: how a bug is patched into a tier's real code, and the plans of the worlds that must find it."""

import random
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Failpoint
from penstock.faults.mutations import plan_world, with_poison
from penstock.faults.plan import FaultKind, PlannedClockStep, PlannedFault, PlannedReplacement, PlannedTokenCount
from penstock.faults.world.tiers import TIERS

MUTANTS = {}

GENERATE, SESSION = "penstock.v1.Inference/Generate", "penstock.v1.Inference/Session"
SUBMIT, DISPATCH = "penstock.mesh.v1.QueueService/Submit", "penstock.mesh.v1.QueueService/Dispatch"
ATTACH = "penstock.mesh.v1.SchedulerService/Attach"
ADMIT, EXECUTE = "penstock.mesh.v1.AdmissionService/Admit", "penstock.mesh.v1.WorkerService/Execute"


@dataclass(frozen=True)
class Mutant:
    """A patch of one attribute, and the plans of its worlds."""

    target: object
    attribute: str
    replacement: Callable
    fault: tuple[FaultKind, str, Failpoint] | None  # the only fault of its worlds; None: those of the seed
    cancel_mode: Callable | None  # changes each request of worlds without faults; None: no change
    mutate_plan: Callable | None  # changes the plans of worlds without other faults; None: no change

    @contextmanager
    def applied(self):
        with patch.object(self.target, self.attribute, self.replacement):
            yield

    def plan(self, seed):
        plan = plan_world(seed)
        if self.mutate_plan:
            return self.mutate_plan(replace(plan, faults=(), late_frame_share=0.0), random.Random(seed))
        if self.cancel_mode:
            # A poison request must not be cancelled.
            requests = (replace(request, crash_token_index=None) for request in plan.requests)
            requests = tuple(self.cancel_mode(request, number) for number, request in enumerate(requests))
            return replace(plan, requests=requests, faults=(), late_frame_share=0.0)
        if self.fault is None:
            return plan
        kind, victim, failpoint = self.fault
        fault = PlannedFault(
            kind=kind,
            duration_s=0.3,
            victim_tier=victim,
            victim_pick=0.5,
            failpoint=failpoint,
            frame_number=1 + seed % 3,
        )
        return replace(plan, faults=(fault,))


def unchanged(request, _):
    return request


def cancels_early(request, number):
    """Cancel while the prompt is sent, tokenized or computed."""
    return replace(
        request, cancel_after_tokens=None, cancel_after_s=0.003 + 0.004 * number, timeout_s=None, max_output_tokens=24
    )


def clocks_that_step(plan, rng):
    """Every host has a clock of its own, and the clock of each tier's first process steps under load."""
    steps = (
        PlannedClockStep(at=rng.uniform(0.0, 0.5), tier=tier, pick=0.0, seconds=rng.choice((-601.0, 601.0)))
        for tier in TIERS
    )
    return replace(plan, has_own_clocks=True, clock_steps=tuple(steps))


def rollout_with_lost_workers(plan, rng):
    """Each worker is replaced by one of another version, and a worker dies in the middle of answers before that."""
    killed = PlannedFault(
        kind=FaultKind.KILL,
        duration_s=0.3,
        victim_tier="worker",
        victim_pick=rng.random(),
        failpoint=Failpoint(EXECUTE, TO_CLIENT, "step"),
        frame_number=rng.randint(2, 8),
    )
    replacements = tuple(
        PlannedReplacement(at=rng.uniform(0.2, 0.4), worker=number, version=1) for number in range(plan.shape.workers)
    )
    return replace(plan, faults=(killed,), replacements=replacements)


def rollout_with_lost_edges(plan, rng):
    """Half of the workers are of another version, and edges die in the middle of answers."""
    killed = tuple(
        PlannedFault(
            kind=FaultKind.KILL,
            duration_s=0.3,
            victim_tier="edge",
            victim_pick=rng.random(),
            failpoint=Failpoint(EXECUTE, TO_CLIENT, "step"),
            frame_number=number,
        )
        for number in (3, 6)
    )
    replacements = (PlannedReplacement(at=0.0, worker=0, version=1),)
    return replace(
        plan, shape=replace(plan.shape, workers=2, edges=2), faults=killed, replacements=replacements, token_counts=()
    )


def poison_with_edge_kills(plan, rng):
    """A request crashes engines, and edges die: their requests are sent again by other edges."""
    kills = (
        PlannedFault(
            kind=FaultKind.KILL, duration_s=0.1, victim_tier="edge", victim_pick=pick, at=rng.uniform(0.3, 0.6)
        )
        for pick in (0, 0.9)
    )
    return replace(with_poison(plan, rng), faults=tuple(kills))


def poison_without_schedulers(plan, rng):
    """A request crashes an engine while all schedulers are down and its edge has just lost the worker."""
    poisoned = with_poison(plan, rng)
    request = next(each for each in poisoned.requests if each.crash_token_index is not None)
    shape = replace(plan.shape, schedulers=1, workers=2)
    unreachable = PlannedFault(
        kind=FaultKind.KILL,
        duration_s=0.3,
        victim_tier="scheduler",
        victim_pick=0,
        at=request.starts_at + rng.uniform(0.02, 0.04),
    )
    lost = PlannedFault(
        kind=FaultKind.RESET,
        duration_s=0.0,
        victim_tier="edge",
        victim_pick=0,
        failpoint=Failpoint(EXECUTE, TO_CLIENT, "step"),
        frame_number=3,
    )
    later = replace(request, max_output_tokens=max(4, request.max_output_tokens), crash_token_index=3)
    return replace(plan, shape=shape, requests=(later,), faults=(unreachable, lost))


def edge_freeze_during_auth_restart(plan, rng):
    """The edge stops soon after its freeze, so that clients have used up their retries."""
    killed_at = rng.uniform(0.3, 0.5)
    resumed_at = killed_at + 0.3 + 4.5
    requests = (
        replace(request, starts_at=killed_at + 0.2, cancel_after_tokens=None, cancel_after_s=None, timeout_s=None)
        for request in plan.requests
    )
    faults = (
        PlannedFault(kind=FaultKind.KILL, duration_s=0.8, victim_tier="auth", victim_pick=0, at=killed_at),
        PlannedFault(
            kind=FaultKind.FREEZE,
            duration_s=resumed_at - killed_at - 0.3,
            victim_tier="edge",
            victim_pick=0,
            at=killed_at + 0.3,
        ),
        PlannedFault(
            kind=FaultKind.TERM,
            duration_s=0.4,
            victim_tier="edge",
            victim_pick=0,
            at=resumed_at + rng.uniform(0.9, 1.1),
        ),
    )
    token_counts = (PlannedTokenCount(starts_at=0.0, prompt=(3,)),)  # makes auth answer, without admitting a request
    shape = replace(plan.shape, edges=1)
    return replace(plan, shape=shape, requests=tuple(requests), token_counts=token_counts, faults=faults)


def poison_resumed_by_another_edge(plan, rng):
    """A request crashes an engine while all schedulers are down, and its edge dies as well."""
    poisoned = with_poison(plan, rng)
    request = next(each for each in poisoned.requests if each.crash_token_index is not None)
    shape = replace(plan.shape, edges=2, schedulers=1, workers=2)
    unreachable = PlannedFault(
        kind=FaultKind.KILL,
        duration_s=0.3,
        victim_tier="scheduler",
        victim_pick=0,
        at=request.starts_at + rng.uniform(0.02, 0.04),
    )
    lost = PlannedFault(
        kind=FaultKind.KILL,
        duration_s=2.0,
        victim_tier="edge",
        victim_pick=0,
        failpoint=Failpoint(EXECUTE, TO_CLIENT, "step"),
        frame_number=3,
    )
    later = replace(request, max_output_tokens=max(4, request.max_output_tokens), crash_token_index=3)
    return replace(plan, shape=shape, requests=(later,), token_counts=(), faults=(unreachable, lost))


def poison_with_scheduler_unreachable(plan, rng):
    """A request crashes an engine while the worker cannot reach its own scheduler, and its edge dies as well."""
    poisoned = with_poison(plan, rng)
    request = next(each for each in poisoned.requests if each.crash_token_index is not None)
    shape = replace(plan.shape, edges=2, schedulers=2, workers=2)
    kind, victim = rng.choice(((FaultKind.PARTITION, "worker"), (FaultKind.FREEZE, "scheduler")))
    unreachable = PlannedFault(
        kind=kind, duration_s=1.5, victim_tier=victim, victim_pick=0, failpoint=Failpoint(ATTACH, TO_SERVER, "started")
    )
    lost = PlannedFault(
        kind=FaultKind.KILL,
        duration_s=2.0,
        victim_tier="edge",
        victim_pick=0,
        failpoint=Failpoint(EXECUTE, TO_CLIENT, "step"),
        frame_number=3,
    )
    later = replace(request, max_output_tokens=max(4, request.max_output_tokens), crash_token_index=3)
    return replace(plan, shape=shape, requests=(later,), token_counts=(), faults=(unreachable, lost))


def poison_sent_twice(plan, rng):
    """A poison request is sent again while the first runs; the edge may start it elsewhere after the crash."""
    poisoned = with_poison(plan, rng)
    request = next(each for each in poisoned.requests if each.crash_token_index is not None)
    first = replace(request, starts_at=0.0, crash_token_index=0, uses_session=False, sends_text=False)
    shape = replace(plan.shape, edges=1, workers=2, slots=1, schedulers=rng.choice((1, 2)), token_budget=8)
    partition = PlannedFault(
        kind=FaultKind.PARTITION,
        duration_s=0.4,
        victim_tier="worker",
        victim_pick=0,
        failpoint=Failpoint(EXECUTE, TO_SERVER, "hello"),
        frame_number=2,
    )
    again = replace(first, starts_at=rng.uniform(0.0, 0.02))
    return replace(plan, shape=shape, requests=(first, again), token_counts=(), faults=(partition,))


def cancels_midway(request, _):
    return replace(
        request,
        cancel_after_tokens=2,
        cancel_after_s=None,
        timeout_s=None,
        max_output_tokens=24,
        ignore_eos=True,
        stops=(),
    )


def mutant(target, name, *, fault=None, cancel_mode=None, mutate_plan=None):
    """Register a mutant: the decorated function replaces the original, which it receives as its first argument."""

    def register(changed):
        original = getattr(target, name)

        def mutated(*args, **kwargs):
            return changed(original, *args, **kwargs)

        MUTANTS[changed.__name__] = Mutant(target, name, mutated, fault, cancel_mode, mutate_plan)
        return changed

    return register
