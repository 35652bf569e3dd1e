"""Mutants of stored responses: bugs of the edges and of the store, which worlds with stored responses must find."""

import asyncio
from dataclasses import replace

from mutant_registry import EXECUTE, mutant
from penstock.auth.responses.response import Response
from penstock.chassis.errors import PenstockError
from penstock.edge.api.http.stored_stream import StoredStreamWriter
from penstock.edge.stored import takeover
from penstock.edge.stored.held import HeldResponse
from penstock.edge.stored.keeper import ResponseKeeper
from penstock.edge.stored.retrieval import ResponseRetrieval
from penstock.edge.stored.vault import ResponseVault
from penstock.faults.grpc.network import TO_CLIENT, Failpoint
from penstock.faults.plan import FaultKind, PlannedFault, ResponseAction
from penstock.faults.response_plans import with_responses

LEASE_S = 4.0  # of the edges of a world


def with_plain_responses(plan, rng, **fields):
    """Stored responses at two edges, without other requests that are special."""
    requests = tuple(replace(each, crash_token_index=None, stall_after_tokens=None) for each in plan.requests)
    stored = with_responses(replace(plan, requests=requests, faults=()), rng)
    responses = tuple(replace(each, **fields) for each in stored.responses) if fields else stored.responses
    return replace(stored, shape=replace(stored.shape, edges=2, response_buffer_bytes=65_536), responses=responses)


def _edge_fault(kind, rng, seconds, frame_number):
    return PlannedFault(
        kind=kind,
        duration_s=seconds,
        victim_tier="edge",
        victim_pick=rng.random(),
        failpoint=Failpoint(EXECUTE, TO_CLIENT, "step"),
        frame_number=frame_number,
    )


def responses_with_frozen_edge(plan, rng):
    """An edge is frozen for longer than its leases while it generates."""
    frozen = _edge_fault(FaultKind.FREEZE, rng, LEASE_S + rng.uniform(1.0, 3.0), rng.randint(2, 12))
    return replace(with_plain_responses(plan, rng, is_background=True), faults=(frozen,))


def responses_with_drained_edge(plan, rng):
    """An edge drains while it generates, and gives its responses to another one."""
    drained = _edge_fault(FaultKind.TERM, rng, 0.3, rng.randint(3, 12))
    return replace(with_plain_responses(plan, rng, is_background=True), faults=(drained,))


def responses_while_auth_dies(plan, rng):
    """Auth dies as clients create responses."""
    killed = PlannedFault(
        kind=FaultKind.KILL, duration_s=1.0, victim_tier="auth", victim_pick=0.0, at=rng.uniform(0.0, 0.5)
    )
    return replace(with_plain_responses(plan, rng), faults=(killed,))


def responses_read_on(plan, rng):
    """Readers leave in the middle and read on at another edge."""
    return with_plain_responses(plan, rng, is_background=True, is_streamed=True, leaves_after_events=rng.randint(2, 8))


def responses_deleted(plan, rng):
    return with_plain_responses(plan, rng, action=ResponseAction.DELETE, continuation=None)


def responses_cancelled(plan, rng):
    """Clients cancel at another edge than the one that generates."""
    return with_plain_responses(
        plan, rng, is_background=True, action=ResponseAction.CANCEL, acts_after_s=0.0, continuation=None
    )


@mutant(HeldResponse, "hand_over", mutate_plan=responses_with_frozen_edge)
def a_former_holder_charges_what_the_next_one_charges(hand_over, self, tokens):
    self.is_lost = True


@mutant(HeldResponse, "hold_settlement", mutate_plan=responses_with_frozen_edge)
def a_response_is_charged_before_the_store_has_its_end(hold_settlement, self, settlement, send):
    send(settlement)


@mutant(ResponseVault, "finish", mutate_plan=responses_with_frozen_edge)
async def a_keeper_ignores_that_its_lease_is_lost(finish, self, held):
    try:
        await finish(self, held)
    except PenstockError as error:
        if error.reason != "RESPONSE_LOST":
            raise


@mutant(takeover, "_resumed_spec", mutate_plan=responses_with_drained_edge)
def a_continued_response_begins_again(resumed_spec, spec, record, output):
    return replace(resumed_spec(spec, record, output), resume_ids=(), answer_id="", model_version="")


@mutant(StoredStreamWriter, "_unread", mutate_plan=responses_read_on)
def a_reader_that_reads_on_receives_all_events(unread, self, frame, first_number, **given):
    return frame


@mutant(Response, "is_claimable", mutate_plan=responses_read_on)
def a_claim_ignores_the_lease(is_claimable, self, now):
    return self.is_in_progress


@mutant(ResponseRetrieval, "delete", mutate_plan=responses_deleted)
async def a_deleted_response_stays_in_the_store(delete, self, key):
    self._keeper.drop_deleted(key)


@mutant(ResponseRetrieval, "find", mutate_plan=responses_cancelled)
async def a_cancel_is_answered_with_what_a_reader_has(find, self, key, *, follows):
    view = await find(self, key, follows=follows)
    followed = self._followed.get((key.tenant_id, key.response_id))
    return view._replace(output=followed, object=b"") if followed else view


@mutant(ResponseKeeper, "_drop", mutate_plan=responses_with_frozen_edge)
def a_lost_response_stays_held(drop, self, held):
    self._held[held.name] = held


@mutant(ResponseVault, "create", mutate_plan=responses_while_auth_dies)
async def a_response_is_acknowledged_before_it_is_stored(create, self, call, **given):
    self.creating = asyncio.get_running_loop().create_task(create(self, call, **given))
    self.creating.add_done_callback(lambda task: task.cancelled() or task.exception())
    return 1


RESPONSE_MUTANTS = (
    a_former_holder_charges_what_the_next_one_charges,
    a_response_is_charged_before_the_store_has_its_end,
    a_keeper_ignores_that_its_lease_is_lost,
    a_continued_response_begins_again,
    a_reader_that_reads_on_receives_all_events,
    a_claim_ignores_the_lease,
    a_deleted_response_stays_in_the_store,
    a_cancel_is_answered_with_what_a_reader_has,
    a_lost_response_stays_held,
    a_response_is_acknowledged_before_it_is_stored,
)
