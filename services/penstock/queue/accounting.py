"""Accounting of running tickets: corrects their predicted charge by the service that they receive."""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from penstock.chassis.garbage import untracked
from penstock.queue.policies.cost import cost_of, running_cost
from penstock.queue.policies.policy import NO_TICKETS, TicketTotals
from penstock.queue.ticket import QueuedTicket
from penstock.v1.inference_pb2 import PRIORITY_BATCH

MAX_RUNNING_TICKETS = 131_072  # tickets; the oldest beyond this keep their predicted charge
REPORT_TIMEOUT_S = 300.0  # s; running tickets are reported at least once a second, except while they wait in an engine
MAX_UNREPORTED_STEPS = 64  # steps charged without a report, so that a ticket that waits in an engine costs little
MAX_EXPIRED_PER_CALL = 1_000  # tickets; a lost scheduler may leave very many, and the event loop must not be held
NO_NUMBERS: Mapping[int, "RunningTicket"] = MappingProxyType({})
MAX_ENDED_TICKETS = 4_096  # tickets; an end is taken back if the worker turns out to be alive


class ServedTicket(NamedTuple):
    """Service that one ticket has received so far, as a scheduler reports it."""

    ticket_id: str
    prompt_tokens: int
    output_tokens: int
    has_ended: bool
    attempt: int
    first_token_after: float = 0.0  # s from the start at the worker; 0: no first token yet
    worker_steps: int = 0  # steps that the worker had done by then; 0: unknown
    number: int = 0  # number of this attempt in later reports of the scheduler; 0: none


class OutputProgress(NamedTuple):
    """Output of running tickets at one worker, by the numbers of its scheduler."""

    numbers: Sequence[int]
    output_tokens: Sequence[int]  # generated so far, by each of `numbers`
    worker_steps: int = 0  # as in ServedTicket


@dataclass(slots=True, eq=False)
class RunningTicket:
    """One leased ticket, the service that it has received, and its cost."""

    ticket: QueuedTicket
    worker_id: str = ""
    worker_steps: int = 0  # steps that the worker had done at its last report; 0: unknown
    prompt_tokens: int = 0  # tokens served, as the next
    output_tokens: int = 0
    has_ended: bool = False
    reported_at: float = 0.0  # s
    scheduler: str = ""  # stream of the scheduler that reports it by number; empty: none
    number: int = 0
    is_ttft_known: bool = False  # the time of the first token was reported
    cost: float = 0.0  # weighted tokens to charge; a running ticket includes a few tokens in advance

    def update_cost(self) -> None:
        if self.has_ended:
            self.cost = cost_of(self.ticket, self.prompt_tokens, self.output_tokens)
        else:
            self.cost = running_cost(self.ticket, self.output_tokens)

    def extrapolate_cost(self, steps: int) -> None:
        """Add one token for each step of the worker since the last report, if the ticket decodes."""
        if self.output_tokens and self.worker_steps:
            made = self.output_tokens + min(MAX_UNREPORTED_STEPS, steps - self.worker_steps)
            self.cost = max(self.cost, running_cost(self.ticket, min(made, self.ticket.max_output_tokens)))

    @property
    def is_complete_answer(self) -> bool:
        """Whether the length of this answer is a sample of its tenant's answer lengths."""
        return self.has_ended and self.output_tokens > 0 and not self.ticket.is_resumed


@dataclass(slots=True)
class ServiceAccounting:
    """Running tickets, ordered by their last report, and tickets that have recently ended."""

    _running: OrderedDict[str, RunningTicket] = field(default_factory=OrderedDict)
    _running_by_worker: dict[str, dict[str, RunningTicket]] = field(default_factory=dict)  # by worker and ticket
    _ended: OrderedDict[str, RunningTicket] = field(default_factory=OrderedDict)
    _numbered: dict[str, dict[int, RunningTicket]] = field(default_factory=dict)  # by scheduler and its number
    running_totals: dict[str, TicketTotals] = field(default_factory=dict)  # by model, of classes other than batch
    running_by_class: dict[tuple[str, int], int] = field(default_factory=dict)  # the same, tickets by model and class
    _now: float = 0.0  # s; time of the last tick

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[QueuedTicket]:
        """Yield the running tickets."""
        return (run.ticket for run in self._running.values())

    def recent(self) -> Iterator[QueuedTicket]:
        """Return an iterator over the tickets that run or have ended recently. Later changes do not affect it."""
        runs = [*self._running.values(), *self._ended.values()]
        return (run.ticket for run in runs)

    def is_running(self, ticket_id: str) -> bool:
        return ticket_id in self._running

    def start(self, ticket: QueuedTicket, now: float, worker_id: str = "") -> None:
        """Add a ticket that was leased. An earlier attempt keeps its present charge."""
        if former := self._ended.pop(ticket.ticket_id, None) or self._remove_running(ticket.ticket_id):
            self._forget_number(former)
        self._add_running(untracked(RunningTicket(ticket, worker_id, reported_at=now)))
        if len(self._running) > MAX_RUNNING_TICKETS and (oldest := self._remove_running(next(iter(self._running)))):
            self._forget_number(oldest)

    def apply_report(self, served: ServedTicket, scheduler: str = "") -> RunningTicket | None:
        """Update a ticket by a report of a scheduler. Return it if its charge changes."""
        ticket_id = served.ticket_id
        run = self._running.get(ticket_id) or self._ended.get(ticket_id)
        if run is None or run.ticket.attempt != served.attempt:
            return None
        if served.number and self._numbered.get(scheduler, NO_NUMBERS).get(served.number) is not run:
            self._set_number(run, scheduler, served.number)
        run.prompt_tokens = max(run.prompt_tokens, served.prompt_tokens)
        return run if self._update(run, served.output_tokens, served.worker_steps, ended=served.has_ended) else None

    def apply_output(self, scheduler: str, progress: OutputProgress) -> list[RunningTicket]:
        """Update running tickets by a report of a scheduler. Return those whose charge changes."""
        numbered, steps = self._numbered.get(scheduler, {}), progress.worker_steps
        return [
            run
            for number, output_tokens in zip(progress.numbers, progress.output_tokens, strict=False)
            if (run := numbered.get(number)) and self._update(run, output_tokens, steps, ended=False)
        ]

    def on_scheduler_disconnected(self, scheduler: str) -> None:
        """Forget the numbers of a scheduler. It reports its tickets in full on its next stream."""
        self._numbered.pop(scheduler, None)  # the tickets keep their numbers, which name none of them any more

    def _update(self, run: RunningTicket, output_tokens: int, worker_steps: int, *, ended: bool) -> bool:
        """Return whether the charge of the ticket changes."""
        run.worker_steps = max(run.worker_steps, worker_steps)
        run.output_tokens = max(run.output_tokens, output_tokens)
        has_changed = run.has_ended != ended
        if has_changed:
            self._set_ended(run, ended=ended)
        if not ended:
            run.reported_at = max(run.reported_at, self._now)
            self._running.move_to_end(run.ticket.ticket_id)
        run.update_cost()
        return has_changed or run.cost != run.ticket.charged_cost

    def apply_worker_steps(self, worker_id: str, steps: int) -> list[RunningTicket]:
        """Return the tickets at a worker whose cost has grown, now that the worker has done `steps` steps."""
        runs = list(self._running_by_worker.get(worker_id, {}).values())
        for run in runs:
            run.extrapolate_cost(steps)
        return [run for run in runs if run.cost > run.ticket.charged_cost]

    @property
    def next_timeout_at(self) -> float:
        """The s at which the next ticket has been without a report for REPORT_TIMEOUT_S; infinite if none runs."""
        oldest = next(iter(self._running.values()), None)
        return oldest.reported_at + REPORT_TIMEOUT_S if oldest else math.inf

    def expire(self, now: float) -> list[RunningTicket]:
        """End tickets without a report for REPORT_TIMEOUT_S, whose scheduler has died, and return them.

        A later report makes such a ticket run again.
        """
        self._now, ended = now, list[RunningTicket]()
        while (
            len(ended) < MAX_EXPIRED_PER_CALL
            and self._running
            and (oldest := next(iter(self._running.values()))).reported_at + REPORT_TIMEOUT_S <= now
        ):
            self._set_ended(oldest, ended=True)
            oldest.update_cost()
            ended.append(oldest)
        return ended

    def revoke(self, ticket_id: str) -> RunningTicket | None:
        """Remove a ticket whose lease was voided before it was served."""
        if run := self._remove_running(ticket_id):
            self._forget_number(run)
        return run

    def _set_ended(self, run: RunningTicket, *, ended: bool) -> None:
        ticket_id, run.has_ended = run.ticket.ticket_id, ended
        if ended:
            self._remove_running(ticket_id)
            self._ended[ticket_id] = run
        else:
            self._add_running(self._ended.pop(ticket_id))
        if len(self._ended) > MAX_ENDED_TICKETS:
            self._forget_number(self._ended.popitem(last=False)[1])

    def _set_number(self, run: RunningTicket, scheduler: str, number: int) -> None:
        self._forget_number(run)
        run.scheduler, run.number = scheduler, number
        self._numbered.setdefault(scheduler, {})[number] = run

    def _forget_number(self, run: RunningTicket) -> None:
        numbered = self._numbered.get(run.scheduler)
        if numbered and numbered.get(run.number) is run:
            del numbered[run.number]

    def _add_running(self, run: RunningTicket) -> None:
        ticket_id = run.ticket.ticket_id
        self._running[ticket_id] = self._running_by_worker.setdefault(run.worker_id, {})[ticket_id] = run
        self._adjust_totals(run.ticket, 1)

    def _remove_running(self, ticket_id: str) -> RunningTicket | None:
        run = self._running.pop(ticket_id, None)
        if run:
            at_worker = self._running_by_worker[run.worker_id]
            del at_worker[ticket_id]
            if not at_worker:
                del self._running_by_worker[run.worker_id]
            self._adjust_totals(run.ticket, -1)
        return run

    def _adjust_totals(self, ticket: QueuedTicket, sign: int) -> None:
        if ticket.priority != PRIORITY_BATCH:
            former = self.running_totals.get(ticket.model, NO_TICKETS)
            if tickets := former.tickets + sign:
                self.running_totals[ticket.model] = TicketTotals(tickets, former.tokens + sign * ticket.tokens)
            else:
                del self.running_totals[ticket.model]
        class_ = ticket.model, ticket.priority
        if running := self.running_by_class.get(class_, 0) + sign:
            self.running_by_class[class_] = running
        else:
            del self.running_by_class[class_]
