"""The policies that a scenario may name, and what sets each apart beside its order."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from penstock.chassis.errors import Overloaded
from penstock.queue.policies.order import SchedulingPolicy
from penstock.queue.promises import TtftTargets
from penstock.queue.waiting import QueuedTicket
from penstock.simulator.baselines.adaptive_lifo import AdaptiveLifo
from penstock.simulator.baselines.clairvoyant import Clairvoyant
from penstock.simulator.baselines.dropping import AgeDrop, Dropping, FollyCodel, Never
from penstock.simulator.baselines.gradient import Gradient, GradientLimit
from penstock.simulator.baselines.plain_vtc import PlainVtc
from penstock.simulator.baselines.round_robin import RoundRobin
from penstock.v1.inference_pb2 import Priority

Clock = Callable[[], float]
Options = Mapping[str, float]

HEADROOM = "ttft_headroom"  # share of the promise that a prediction may take; a policy without it promises nothing


class BaselineOrder(SchedulingPolicy, Protocol):
    def dropped(self) -> list[QueuedTicket]:
        """Return, once, what it has taken out and will never hand over."""


@dataclass(frozen=True, slots=True)
class Lenient(TtftTargets):
    let_in: frozenset[str] = frozenset()

    def ttft_limit(self, ticket: QueuedTicket, now: float) -> float | None:
        return None if ticket.ticket_id in self.let_in else TtftTargets.ttft_limit(self, ticket, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    make: Callable[[Clock, Options], BaselineOrder] | None  # None: the order that the queue is shipped with
    options: Options = field(default_factory=dict)  # with their defaults
    is_bounded: bool = True  # by the scenario's max_depth and max_tokens
    minds_clients: bool = True  # whether work for a client that left is stopped

    def order(self, clock: Clock, given: Options) -> BaselineOrder | None:
        return self.make(clock, {**self.options, **given}) if self.make else None

    def promises(self, ttft: float, given: Options, let_in: frozenset[str]) -> TtftTargets:
        """Batch is promised nothing, as the queue has it by default, nor is what is to be let in."""
        options = {**self.options, **given}
        if HEADROOM not in options:
            return TtftTargets()
        classes = Priority.PRIORITY_INTERACTIVE, Priority.PRIORITY_STANDARD
        return Lenient({int(each): ttft for each in classes}, options[HEADROOM], let_in)

    def refusal(self) -> Overloaded:
        return Overloaded("waited too long in line; retry in 1 s", reason="DROPPED_AT_HEAD", retry_after=1.0)


def _fifo(clock: Clock, _: Options) -> Dropping:
    return Dropping(Never(), clock)


def _age_drop(clock: Clock, options: Options) -> Dropping:
    return Dropping(AgeDrop(options["age_limit"]), clock)


def _codel(clock: Clock, options: Options) -> Dropping:
    return Dropping(FollyCodel(options["target"], options["interval"]), clock)


def _adaptive_lifo(_: Clock, options: Options) -> AdaptiveLifo:
    return AdaptiveLifo(int(options["queue_is_short"]))


def _vtc(clock: Clock, options: Options) -> PlainVtc:
    return PlainVtc(options["input_weight"], options["output_weight"], clock, options["news_every"])


def _clairvoyant(_: Clock, options: Options) -> Clairvoyant:
    return Clairvoyant(options["ahead"])


def _gradient(clock: Clock, _: Options) -> GradientLimit:
    return GradientLimit(Gradient(), clock)


def _round_robin(clock: Clock, options: Options) -> RoundRobin:
    return RoundRobin(options["ttl"], clock)


POLICIES: Mapping[str, Policy] = {
    "penstock": Policy(make=None, options={HEADROOM: TtftTargets().headroom}),
    "fair": Policy(make=None),  # the same without a promise: what comes waits for as long as it takes
    "fifo": Policy(make=_fifo, is_bounded=False, minds_clients=False),
    "fifo_connected": Policy(make=_fifo, is_bounded=False),
    "bounded_fifo": Policy(make=_fifo),
    "age_drop": Policy(make=_age_drop, options={"age_limit": 0.8}),
    "codel": Policy(make=_codel, options={"target": 0.005, "interval": 0.1}),
    "adaptive_lifo": Policy(make=_adaptive_lifo, options={"queue_is_short": 8}),
    "gradient": Policy(make=_gradient),
    "round_robin": Policy(make=_round_robin, options={"ttl": 1.0}),
    "clairvoyant": Policy(make=_clairvoyant, options={"ahead": 64.0}),
    "vtc": Policy(make=_vtc, options={"input_weight": 1.0, "output_weight": 2.0, "news_every": 0.0}),
    # The same with no more news than a mesh has.
    "vtc_in_a_mesh": Policy(make=_vtc, options={"input_weight": 1.0, "output_weight": 2.0, "news_every": 0.25}),
}
