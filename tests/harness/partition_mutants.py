"""Mutants of partitions of tenants: bugs by which two replicas of auth could spend for one tenant."""

from dataclasses import replace
from unittest.mock import patch

from mutant_registry import ADMIT, mutant
from penstock.auth import service
from penstock.auth.authorizer import Authorizer
from penstock.auth.partitions.keeper import PartitionKeeper
from penstock.auth.service import AdmissionService
from penstock.auth.store.store import Giving, Release
from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Failpoint
from penstock.faults.mutations import with_auth_replicas
from penstock.faults.plan import FaultKind, PlannedFault
from penstock.faults.world.stores.replica_store import ReplicaStore
from penstock.faults.world.stores.shared_database import SharedDatabase
from penstock.mesh.partitions import PARTITIONS

RESERVE, SETTLE = Failpoint(ADMIT, TO_SERVER, "reserve"), Failpoint(ADMIT, TO_SERVER, "settle")
SETTLED = Failpoint(ADMIT, TO_CLIENT, "settled")


def _fault(kind, duration_s, failpoint=None, *, frame_number=1, at=0.0, pick=0.0):
    return PlannedFault(
        kind=kind,
        duration_s=duration_s,
        victim_tier="auth",
        victim_pick=pick,
        at=at,
        failpoint=failpoint,
        frame_number=frame_number,
    )


def _two_replicas(plan, rng):
    plan = with_auth_replicas(plan, rng)
    return replace(plan, shape=replace(plan.shape, auths=2))


def frozen_owner(plan, rng):
    """The owner of a tenant is paused for longer than its lease, while changes of a burst wait for their commit."""
    plan = _two_replicas(plan, rng)
    requests = tuple(replace(each, starts_at=rng.uniform(0.0, 0.02), cancel_after_s=None) for each in plan.requests)
    fault = _fault(FaultKind.FREEZE, rng.uniform(1.5, 5.0), at=rng.uniform(0.01, 0.06), pick=rng.random())
    return replace(plan, requests=requests, token_counts=(), faults=(fault,))


def killed_owner(plan, rng):
    """The owner of a tenant dies while requests run."""
    fault = _fault(FaultKind.KILL, 0.3, RESERVE, frame_number=rng.randint(2, 3))
    return replace(_two_replicas(plan, rng), faults=(fault,))


def owner_killed_before_its_answer(plan, rng):
    """The owner of a tenant dies after it has committed a settlement, and before the edge receives the answer."""
    fault = _fault(FaultKind.KILL, 0.3, SETTLED, frame_number=rng.randint(1, 2))
    return replace(_two_replicas(plan, rng), faults=(fault,))


def moving_partitions(plan, rng):
    """A replica drains, and its next process joins, under load."""
    plan = _two_replicas(plan, rng)
    requests = tuple(
        replace(each, starts_at=rng.uniform(0.5, 2.0), cancel_after_tokens=None, cancel_after_s=None, timeout_s=None)
        for each in plan.requests
    )
    return replace(plan, requests=requests, faults=(_fault(FaultKind.TERM, 0.1, pick=rng.random()),))


def owner_resumes_while_its_successor_is_paused(plan, rng):
    """The successor of a paused owner admits requests and is paused before their settlements. Edges send them back."""
    plan = _two_replicas(plan, rng)
    requests = tuple(
        replace(
            each,
            tenant=0,
            starts_at=rng.uniform(1.0, 2.0) if number else 0.0,
            cancel_after_tokens=None,
            cancel_after_s=None,
            timeout_s=None,
        )
        for number, each in enumerate(plan.requests)
    )
    faults = (
        _fault(FaultKind.FREEZE, rng.uniform(3.8, 4.4), SETTLED),
        _fault(FaultKind.FREEZE, rng.uniform(4.0, 5.0), SETTLE, frame_number=2),
    )
    return replace(plan, requests=requests, token_counts=(), faults=faults)


@mutant(SharedDatabase, "holds", mutate_plan=frozen_owner)
def the_epoch_is_not_compared(*_):
    return True


@mutant(ReplicaStore, "_schedule_commit", mutate_plan=frozen_owner)
def the_epoch_is_compared_before_the_transaction(schedule_commit, self, seconds):
    is_owner = self.replica.database.holds(self.replica.owner, self.replica.keeper.epochs)
    timer = schedule_commit(self, seconds)
    timer.cancel()

    def commit():
        with patch.object(SharedDatabase, "holds", lambda *_: is_owner):
            self._commit()

    self._timer = self._loop.call_later(seconds, commit)
    return self._timer


@mutant(SharedDatabase, "read", mutate_plan=killed_owner)
def reservations_are_lost_at_a_takeover(read, self, partitions):
    return read(self, partitions)._replace(reservations=[])


@mutant(Authorizer, "take", mutate_plan=owner_killed_before_its_answer)
def a_settlement_that_was_not_answered_is_applied_again(take, self, epochs, state, now):
    settled = [each.reservation for each in state.charged]
    take(self, epochs, state._replace(reservations=[*state.reservations, *settled], charged=[]), now)


@mutant(AdmissionService, "_on_store_event", mutate_plan=moving_partitions)
def a_replica_admits_while_it_gives_a_partition(on_store_event, self, event):
    if isinstance(event, Giving):
        self._store.write(Release(event.partitions), lambda _: None)
    else:
        on_store_event(self, event)


class EarlyReader:
    """A table that reads the state with the look before the one that takes a partition."""

    def __init__(self, replica):
        self._replica = replica
        self._states = [None, None]

    def __getattr__(self, name):
        return getattr(self._replica, name)

    def renew(self, ttl, presence):
        self._states = [self._states[1], self._replica.database.read(range(PARTITIONS))]
        return self._replica.renew(ttl, presence)

    def read(self, partitions):
        early = self._states[0] or self._states[1]
        return self._replica.database.restricted(early, partitions)


@mutant(PartitionKeeper, "look", mutate_plan=moving_partitions)
def the_state_is_read_before_the_partition_is_taken(look, self, table, now, clock):
    if not hasattr(self, "early"):
        self.early = EarlyReader(table)
    return look(self, self.early, now, clock)


@mutant(service, "Barrier", mutate_plan=owner_resumes_while_its_successor_is_paused)
def a_former_owner_confirms_settlements_that_it_does_not_know(barrier, *_):
    return barrier()


PARTITION_MUTANTS = (
    the_epoch_is_not_compared,
    the_epoch_is_compared_before_the_transaction,
    reservations_are_lost_at_a_takeover,
    a_settlement_that_was_not_answered_is_applied_again,
    a_replica_admits_while_it_gives_a_partition,
    the_state_is_read_before_the_partition_is_taken,
    a_former_owner_confirms_settlements_that_it_does_not_know,
)
