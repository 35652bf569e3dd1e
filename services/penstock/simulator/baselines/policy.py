"""The policies that a scenario may name, with their options and overload behaviour."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from penstock.chassis.errors import Overloaded
from penstock.queue.admission.admission import TtftTargets
from penstock.queue.policies.policy import SchedulingPolicy
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.baselines.adaptive_lifo import AdaptiveLifo
from penstock.simulator.baselines.clairvoyant import ClairvoyantPolicy
from penstock.simulator.baselines.dropping import AgeDrop, DroppingFifo, FollyCodel, NeverDrop
from penstock.simulator.baselines.gradient import GradientController, GradientLimitedFifo
from penstock.simulator.baselines.plain_vtc import PlainVtc
from penstock.simulator.baselines.round_robin import RoundRobin
from penstock.v1.inference_pb2 import Priority

Clock = Callable[[], float]
Options = Mapping[str, float]

# Share of the TTFT target that a prediction may reach; a policy without this option has no TTFT targets.
HEADROOM_OPTION = "ttft_headroom"


class BaselineSchedulingPolicy(SchedulingPolicy, Protocol):
    """A scheduling policy that may drop tickets by itself."""

    def pop_dropped(self) -> list[QueuedTicket]:
        """Return the tickets that were dropped since the last call."""


@dataclass(frozen=True, slots=True)
class ExemptingTtftTargets(TtftTargets):
    """TTFT targets that do not apply to exempt tickets."""

    exempt_tickets: frozenset[str] = frozenset()

    def ttft_limit(self, ticket: QueuedTicket, now: float) -> float | None:
        return None if ticket.ticket_id in self.exempt_tickets else TtftTargets.ttft_limit(self, ticket, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselinePolicy:
    """One policy: how to create it, and how a mesh with it treats overload."""

    # None: the shipped policy of the queue.
    factory: Callable[[Clock, Options], BaselineSchedulingPolicy] | None
    options: Options = field(default_factory=dict)  # name -> default
    is_bounded: bool = True  # whether the scenario's max_depth and max_tokens apply
    cancels_abandoned: bool = True  # whether the work of a client that cancelled is stopped

    def new_scheduling_policy(self, clock: Clock, given: Options) -> BaselineSchedulingPolicy | None:
        return self.factory(clock, {**self.options, **given}) if self.factory else None

    def ttft_targets(self, ttft_target: float, given: Options, exempt_tickets: frozenset[str]) -> TtftTargets:
        """Return the TTFT targets; there is none for the batch class, as in the shipped queue."""
        options = {**self.options, **given}
        if HEADROOM_OPTION not in options:
            return TtftTargets()
        classes = Priority.PRIORITY_INTERACTIVE, Priority.PRIORITY_STANDARD
        return ExemptingTtftTargets(
            {int(each): ttft_target for each in classes}, options[HEADROOM_OPTION], exempt_tickets=exempt_tickets
        )

    def rejection(self) -> Overloaded:
        return Overloaded(
            "the ticket waited too long in the queue; retry in 1 s", reason="DROPPED_AT_HEAD", retry_after=1.0
        )


def _new_fifo(clock: Clock, _: Options) -> DroppingFifo:
    return DroppingFifo(NeverDrop(), clock)


def _new_age_drop(clock: Clock, options: Options) -> DroppingFifo:
    return DroppingFifo(AgeDrop(options["age_limit"]), clock)


def _new_codel(clock: Clock, options: Options) -> DroppingFifo:
    return DroppingFifo(FollyCodel(options["target"], options["interval"]), clock)


def _new_adaptive_lifo(_: Clock, options: Options) -> AdaptiveLifo:
    return AdaptiveLifo(int(options["queue_is_short"]))


def _new_vtc(clock: Clock, options: Options) -> PlainVtc:
    return PlainVtc(options["input_weight"], options["output_weight"], clock, options["report_interval"])


def _new_clairvoyant(_: Clock, options: Options) -> ClairvoyantPolicy:
    return ClairvoyantPolicy(options["ahead"])


def _new_gradient(clock: Clock, _: Options) -> GradientLimitedFifo:
    return GradientLimitedFifo(GradientController(), clock)


def _new_round_robin(clock: Clock, options: Options) -> RoundRobin:
    return RoundRobin(options["ttl"], clock)


POLICIES: Mapping[str, BaselinePolicy] = {
    "penstock": BaselinePolicy(factory=None, options={HEADROOM_OPTION: TtftTargets().headroom}),
    "fair": BaselinePolicy(factory=None),  # the same without TTFT targets: no limit on waiting times
    "fifo": BaselinePolicy(factory=_new_fifo, is_bounded=False, cancels_abandoned=False),
    "fifo_connected": BaselinePolicy(factory=_new_fifo, is_bounded=False),
    "bounded_fifo": BaselinePolicy(factory=_new_fifo),
    "age_drop": BaselinePolicy(factory=_new_age_drop, options={"age_limit": 0.8}),
    "codel": BaselinePolicy(factory=_new_codel, options={"target": 0.005, "interval": 0.1}),
    "adaptive_lifo": BaselinePolicy(factory=_new_adaptive_lifo, options={"queue_is_short": 8}),
    "gradient": BaselinePolicy(factory=_new_gradient),
    "round_robin": BaselinePolicy(factory=_new_round_robin, options={"ttl": 1.0}),
    "clairvoyant": BaselinePolicy(factory=_new_clairvoyant, options={"ahead": 64.0}),
    "vtc": BaselinePolicy(
        factory=_new_vtc, options={"input_weight": 1.0, "output_weight": 2.0, "report_interval": 0.0}
    ),
    # The same with reports at the interval of a mesh.
    "vtc_in_a_mesh": BaselinePolicy(
        factory=_new_vtc, options={"input_weight": 1.0, "output_weight": 2.0, "report_interval": 0.25}
    ),
}
