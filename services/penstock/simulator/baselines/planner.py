"""An order that knows the length of every answer, and tries each choice out before it makes it.

Whenever a worker has room, the `CHOICES` least served tenants are looked at. The first ticket of each that fits is a
choice, and so is to keep the room for a tenant whose first ticket does not fit yet. For each choice the engine is
forecast for `steps` of its steps (see `rollout`). The choice with the least unevenness of services over these steps is
made. A tenant's service is taken relative to the middle of where it has been beside each other tenant, because the gap
that is judged is the range of their difference.

It is told of each step of the engine as that ends, as no mesh could be. It cannot stop a request or divide one, it
takes each tenant's tickets in their order unless they do not fit, and it knows neither requests that have not arrived
nor clients that will leave. It is a heuristic, so the best possible order may come lower. It plans for one worker.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import NamedTuple

from penstock.queue.policies.cost import INPUT_WEIGHT, OUTPUT_WEIGHT
from penstock.queue.policies.policy import NOTHING, Ahead, Fit, FitFn, Key, Load
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.baselines.base import Alone
from penstock.simulator.baselines.rollout import NOBODY, START, Lane, Rollout, Size
from penstock.simulator.mesh.engine import NEVER, Run
from penstock.simulator.scenario import WorkerKind

CHOICES = 4  # tenants
LOOK = 8  # tickets of one tenant that are looked at for one that fits
SAMPLE = 1.0  # s


@dataclass(slots=True, eq=False)
class Tenant:
    name: str
    waiting: list[QueuedTicket] = field(default_factory=list)  # by arrival
    service: float = 0.0  # weighted tokens by its weight
    ran_dry: bool = True  # since the last sample


class Choice(NamedTuple):
    tenant: Tenant
    ticket: QueuedTicket
    fits: bool


class Planner(Alone):
    """`steps`: of the engine, that are forecast. `ahead`: as in `Rollout`. `kind`: of the one worker."""

    def __init__(self, steps: float, ahead: float, clock: Callable[[], float], kind: WorkerKind) -> None:
        self._steps = steps
        self._ahead = ahead
        self._clock = clock
        self._kind = kind
        self._tenants: dict[str, Tenant] = {}
        self._emitted: dict[QueuedTicket, int] = {}  # tokens of what was taken and has not ended
        self._unseen: dict[tuple[str, int, int], list[QueuedTicket]] = {}  # taken, and not seen at the engine yet
        self._tickets: dict[int, QueuedTicket] = {}  # by run
        self._ranges: dict[tuple[str, str], tuple[float, float]] = {}  # of differences while both had a backlog
        self._sampled_at = 0.0
        self.load = NOTHING

    def dropped(self) -> list[QueuedTicket]:
        return []

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        """Reports are ignored: each step is known."""

    def push(self, ticket: QueuedTicket) -> None:
        self._forget(ticket)
        tenant = self._tenants.setdefault(ticket.tenant_id, Tenant(ticket.tenant_id))
        insort(tenant.waiting, ticket, key=lambda each: each.arrival)
        self._count(ticket, 1)

    def remove(self, ticket: QueuedTicket) -> None:
        if ticket.is_marked_changed:
            self._unlist(ticket)

    def take(self, fit: FitFn) -> QueuedTicket | None:
        choices = list(self._choices(fit))
        if not any(each.fits for each in choices):
            return None
        best = min(choices, key=self._unevenness) if len(choices) > 1 else choices[0]
        if not best.fits:
            return None
        self._unlist(best.ticket)
        self._unseen.setdefault(_told(best.ticket), []).append(best.ticket)
        self._emitted[best.ticket] = 0
        return best.ticket

    def head(self) -> tuple[QueuedTicket, Key] | None:
        if not (backlogged := self._backlogged()):
            return None
        ticket = min([each.waiting[0] for each in backlogged], key=lambda each: each.arrival)
        return ticket, Key(ticket.priority, 0.0, ticket.enqueued)

    def ahead(self, ticket: QueuedTicket) -> Ahead:
        return Ahead(self.load.tickets, self.load.tokens)

    def evictable(self, priority: int) -> Load:
        return NOTHING

    def next_victim(self, priority: int) -> tuple[QueuedTicket, Key] | None:
        return None

    def stepped(self, runs: Iterable[Run], step: int) -> None:
        for run in runs:
            if ticket := self._ticket_of(run):
                self._note(ticket, run, step)
        if self._clock() >= self._sampled_at + SAMPLE:
            self._sampled_at = self._clock() // SAMPLE * SAMPLE
            self._sample()

    # What is served.

    def _note(self, ticket: QueuedTicket, run: Run, step: int) -> None:
        if run.first != NEVER and run.last in (NEVER, step):
            tenant, emitted = self._tenants[ticket.tenant_id], self._emitted[ticket]
            gained = OUTPUT_WEIGHT + (0.0 if emitted else INPUT_WEIGHT * ticket.min_prompt_tokens)
            tenant.service += gained / ticket.weight
            self._emitted[ticket] = emitted + 1
        if run.last != NEVER:
            self._forget(ticket)

    def _ticket_of(self, run: Run) -> QueuedTicket | None:
        if run.run_id not in self._tickets and (unseen := self._unseen.get((run.tenant, run.prompt, run.declared))):
            self._tickets[run.run_id] = unseen.pop(0)
        return self._tickets.get(run.run_id)

    def _forget(self, ticket: QueuedTicket) -> None:
        if self._emitted.pop(ticket, None) is None:
            return
        if ticket in (unseen := self._unseen.get(_told(ticket), [])):
            unseen.remove(ticket)
        self._tickets = {run_id: each for run_id, each in self._tickets.items() if each is not ticket}

    def _sample(self) -> None:
        """Widen the ranges of the pairs that have had a backlog since the last sample, and forget the others."""
        both = combinations([each for each in self._backlogged() if not each.ran_dry], 2)
        ranges = {}
        for one, other in both:
            pair, apart = (one.name, other.name), one.service - other.service
            low, high = self._ranges.get(pair, (apart, apart))
            ranges[pair] = min(low, apart), max(high, apart)
        self._ranges = ranges
        for each in self._tenants.values():
            each.ran_dry = not each.waiting

    # What to choose.

    def _backlogged(self) -> list[Tenant]:
        return [each for each in self._tenants.values() if each.waiting]

    def _choices(self, fit: FitFn) -> Iterator[Choice]:
        tenants = self._backlogged()
        levels = dict(zip(tenants, self._levels(tenants), strict=True))
        for ticket, emitted in self._emitted.items():
            if (tenant := self._tenants[ticket.tenant_id]) in levels:
                left = min(self._ahead, ticket.min_output_tokens - emitted)
                begun = 0.0 if emitted else INPUT_WEIGHT * ticket.min_prompt_tokens
                levels[tenant] += (begun + OUTPUT_WEIGHT * left) / ticket.weight
        for tenant in sorted(tenants, key=levels.__getitem__)[:CHOICES]:
            for place, ticket in enumerate(islice(tenant.waiting, LOOK)):
                if fit(ticket) is Fit.NOW:
                    yield Choice(tenant, ticket, True)
                    break
                if not place:
                    yield Choice(tenant, ticket, False)

    def _levels(self, tenants: Sequence[Tenant]) -> list[float]:
        """Return each service less what would put every pair in the middle of its range."""
        return [each.service - sum([self._middle(each, other) for other in tenants]) / len(tenants) for each in tenants]

    def _middle(self, one: Tenant, other: Tenant) -> float:
        if found := self._ranges.get((one.name, other.name)):
            return sum(found) / 2
        if found := self._ranges.get((other.name, one.name)):
            return -sum(found) / 2
        return one.service - other.service

    def _unevenness(self, choice: Choice) -> float:
        tenants = self._backlogged()
        lanes = [
            Lane(level, self._sizes(tenant, choice))
            for tenant, level in zip(tenants, self._levels(tenants), strict=True)
        ]
        places = {each.name: place for place, each in enumerate(tenants)}
        rollout = Rollout(lanes, self._kind.kv_blocks, self._kind.slots, self._ahead)
        for ticket, emitted in self._emitted.items():
            left = ticket.min_output_tokens - emitted + (0 if emitted else START)
            rollout.run(places.get(ticket.tenant_id, NOBODY), self._size(ticket), left, has_begun=emitted > 0)
        if choice.fits:
            rollout.start(places[choice.tenant.name], self._size(choice.ticket))
        else:
            rollout.held = places[choice.tenant.name]
        return rollout.unevenness(self._steps)

    def _sizes(self, tenant: Tenant, choice: Choice) -> Iterator[Size]:
        return (self._size(each) for each in tenant.waiting if not (choice.fits and each is choice.ticket))

    def _size(self, ticket: QueuedTicket) -> Size:
        blocks = -(-ticket.tokens // self._kind.block_size)
        return Size(ticket.min_prompt_tokens, ticket.min_output_tokens, blocks, ticket.weight)

    def _unlist(self, ticket: QueuedTicket) -> None:
        tenant = self._tenants[ticket.tenant_id]
        tenant.waiting.remove(ticket)
        tenant.ran_dry |= not tenant.waiting
        self._count(ticket, -1)

    def _count(self, ticket: QueuedTicket, sign: int) -> None:
        ticket.listing += 1
        self.load = Load(self.load.tickets + sign, self.load.tokens + sign * ticket.tokens)


def _told(ticket: QueuedTicket) -> tuple[str, int, int]:
    return ticket.tenant_id, ticket.min_prompt_tokens, ticket.min_output_tokens
