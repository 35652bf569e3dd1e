"""Mutants of several regions: bugs of edges that offer requests and run guests, which worlds with regions must find."""

from dataclasses import replace

from mutant_registry import mutant
from penstock.edge.lifecycle.record import RequestState
from penstock.edge.regions import spill
from penstock.edge.regions.connection import RegionConnection
from penstock.edge.regions.guests import GuestService, GuestStream
from penstock.faults.grpc.network import TO_CLIENT, Failpoint
from penstock.faults.plan import FaultKind, PlannedBorder, PlannedFault, PlannedTenant
from penstock.faults.regions.plans import with_overload

RUN = "penstock.mesh.v1.RegionService/Run"


def lost_streams(plan, rng):
    """A stream between two regions is lost while it carries tokens."""
    fault = PlannedFault(
        kind=FaultKind.RESET,
        duration_s=0.0,
        victim_tier="edge",
        victim_pick=0.0,
        failpoint=Failpoint(RUN, TO_CLIENT, "step"),
        frame_number=rng.choice((1, 2)),
    )
    return with_overload(plan, rng, fault)


def slow_links(plan, rng):
    """Answers to offers take longer than an edge waits for them."""
    slow = PlannedFault(
        kind=FaultKind.SLOW_LINK, duration_s=8.0, victim_tier="", victim_pick=0.0, added_delay_s=0.8, at=0.0
    )
    return with_overload(plan, rng, slow)


def resident_overload(plan, rng):
    """All requests are of a tenant that stays in its region, which rejects some of them."""
    spilling = with_overload(plan, rng)
    home = spilling.shape.region
    tenants = (spilling.tenants[0], PlannedTenant(tenant_id="acme", allowed_regions=(home,)))
    requests = tuple(replace(each, tenant=1) for each in spilling.requests if each.region == 0)
    return replace(spilling, requests=requests, tenants=tenants, border=PlannedBorder(trip_s=0.02))


def cancelled_guests(plan, rng):
    """Clients cancel in the middle of their answers."""
    spilling = with_overload(plan, rng)
    requests = tuple(
        replace(each, cancel_after_tokens=6, cancel_after_s=None, timeout_s=None, stops=(), ignore_eos=True)
        for each in spilling.requests
    )
    return replace(spilling, requests=requests)


@mutant(RegionConnection, "_on_down", mutate_plan=lost_streams)
def a_lost_guest_is_not_continued_at_home(on_down, self):
    offered = {handle: each for handle, each in self._contexts.items() if each.request.state is RequestState.OFFERED}
    self._contexts = offered
    on_down(self)


@mutant(RegionConnection, "_on_run_frame", mutate_plan=cancelled_guests)
def a_cancelled_guest_is_charged_twice(on_run_frame, self, kind, frame):
    if kind == "cancelled":
        frame.cancelled.output_tokens *= 2
    on_run_frame(self, kind, frame)


@mutant(spill, "is_region_allowed", mutate_plan=resident_overload)
def an_edge_ignores_the_regions_of_a_tenant(*_):
    return True


@mutant(RegionConnection, "discard", mutate_plan=slow_links)
def an_unanswered_offer_is_not_cancelled(discard, self, handle):
    self._remove(handle)


@mutant(GuestService, "_on_settled", mutate_plan=lost_streams)
def a_guest_is_settled_where_it_runs(on_settled, self, *given):
    _, _, settlement, send = given
    send(settlement)


@mutant(GuestStream, "end", mutate_plan=with_overload)
def the_end_of_a_guest_overtakes_its_tokens(end, self, handle, frame):
    steps, self._steps = self._steps, {}
    end(self, handle, frame)
    self._steps = steps


REGION_MUTANTS = (
    a_lost_guest_is_not_continued_at_home,
    a_cancelled_guest_is_charged_twice,
    an_edge_ignores_the_regions_of_a_tenant,
    an_unanswered_offer_is_not_cancelled,
    a_guest_is_settled_where_it_runs,
    the_end_of_a_guest_overtakes_its_tokens,
)
