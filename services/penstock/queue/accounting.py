"""Tickets that run, so that what they were charged can be put right by what they are really served."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.queue.policies.cost import cost_of, running_cost
from penstock.queue.ticket import QueuedTicket

MAX_RUNNING_TICKETS = 131_072  # tickets; of older ones the predicted charge stands
REPORT_TIMEOUT_S = 300.0  # s; what runs is spoken of several times a second, but for what waits inside an engine
MAX_UNREPORTED_STEPS = 64  # since a run was told of: what stands still inside an engine is not charged for long
MAX_ENDED_TICKETS = 4_096  # tickets; an end may be taken back when a worker turns out to live


class ServedTicket(NamedTuple):
    """What a scheduler says that a ticket was served so far."""

    ticket_id: str
    prompt_tokens: int
    output_tokens: int
    has_ended: bool
    attempt: int
    first_token_after: float = 0.0  # s from its start at the worker; 0: none has come
    worker_steps: int = 0  # that its worker had done by then; 0: unknown


@dataclass(slots=True)
class RunningTicket:
    ticket: QueuedTicket
    worker_id: str = ""
    worker_steps: int = 0  # that the worker had done when it told last; 0: unknown
    prompt_tokens: int = 0  # served
    output_tokens: int = 0
    has_ended: bool = False
    reported_at: float = 0.0  # s
    is_ttft_known: bool = False  # whether it is known when its first token came
    cost: float = 0.0  # what it is to be charged: a part of what is predicted ahead, until it has ended

    def update_cost(self) -> None:
        if self.has_ended:
            self.cost = cost_of(self.ticket, self.prompt_tokens, self.output_tokens)
        else:
            self.cost = running_cost(self.ticket, self.output_tokens)

    def extrapolate_cost(self, steps: int) -> None:
        """Reckon with a token for each step that its worker has done since it was told of, once it decodes."""
        if self.output_tokens and self.worker_steps:
            made = self.output_tokens + min(MAX_UNREPORTED_STEPS, steps - self.worker_steps)
            self.cost = max(self.cost, running_cost(self.ticket, min(made, self.ticket.max_output_tokens)))

    @property
    def is_complete_answer(self) -> bool:
        """Tell whether it says how long its tenant's answers are: it is whole, as far as can be known here."""
        return self.has_ended and self.output_tokens > 0 and not self.ticket.is_resumed


@dataclass(slots=True)
class ServiceAccounting:
    """Counts those that run, the longest unheard of first; those that have ended are remembered for a while."""

    _running: OrderedDict[str, RunningTicket] = field(default_factory=OrderedDict)
    _running_by_worker: dict[str, dict[str, RunningTicket]] = field(
        default_factory=dict
    )  # that run, by worker and ticket
    _ended: OrderedDict[str, RunningTicket] = field(default_factory=OrderedDict)
    _now: float = 0.0  # s; when time last passed

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[QueuedTicket]:
        """Yield the tickets that run."""
        return (run.ticket for run in self._running.values())

    def start(self, ticket: QueuedTicket, now: float, worker_id: str = "") -> None:
        """Follow a ticket that got a lease; an earlier attempt of it keeps the charge it has come to."""
        self._ended.pop(ticket.ticket_id, None)
        self._remove_running(ticket.ticket_id)
        self._add_running(RunningTicket(ticket, worker_id, reported_at=now))
        if len(self._running) > MAX_RUNNING_TICKETS:
            self._remove_running(next(iter(self._running)))

    def apply_report(self, served: ServedTicket) -> RunningTicket | None:
        """Put a ticket's run right and return it where its charge changes."""
        ticket_id = served.ticket_id
        run = self._running.get(ticket_id) or self._ended.get(ticket_id)
        if run is None or run.ticket.attempt != served.attempt:
            return None
        run.worker_steps = max(run.worker_steps, served.worker_steps)
        run.prompt_tokens = max(run.prompt_tokens, served.prompt_tokens)
        run.output_tokens = max(run.output_tokens, served.output_tokens)
        is_news = self._set_ended(ticket_id, run, ended=served.has_ended)
        if not run.has_ended:
            run.reported_at = max(run.reported_at, self._now)
            self._running.move_to_end(ticket_id)
        run.update_cost()
        return run if is_news or run.cost != run.ticket.charged_cost else None

    def apply_worker_steps(self, worker_id: str, steps: int) -> list[RunningTicket]:
        """Return the runs at a worker that cost more by now, as it has done so many steps."""
        runs = list(self._running_by_worker.get(worker_id, {}).values())
        for run in runs:
            run.extrapolate_cost(steps)
        return [run for run in runs if run.cost > run.ticket.charged_cost]

    def expire(self, now: float) -> list[RunningTicket]:
        """End those that nobody speaks of any more, and return them: their schedulers died before they could tell.

        One that is spoken of again runs again.
        """
        self._now, gone = now, []
        while self._running and (oldest := next(iter(self._running.values()))).reported_at + REPORT_TIMEOUT_S <= now:
            self._set_ended(oldest.ticket.ticket_id, oldest, ended=True)
            oldest.update_cost()
            gone.append(oldest)
        return gone

    def revoke(self, ticket_id: str) -> RunningTicket | None:
        """Stop following a ticket whose lease is void before anything was served."""
        return self._remove_running(ticket_id)

    def _set_ended(self, ticket_id: str, run: RunningTicket, *, ended: bool) -> bool:
        if run.has_ended == ended:
            return False
        run.has_ended = ended
        if ended:
            self._remove_running(ticket_id)
            self._ended[ticket_id] = run
        else:
            self._add_running(self._ended.pop(ticket_id))
        if len(self._ended) > MAX_ENDED_TICKETS:
            self._ended.popitem(last=False)
        return True

    def _add_running(self, run: RunningTicket) -> None:
        ticket_id = run.ticket.ticket_id
        self._running[ticket_id] = self._running_by_worker.setdefault(run.worker_id, {})[ticket_id] = run

    def _remove_running(self, ticket_id: str) -> RunningTicket | None:
        run = self._running.pop(ticket_id, None)
        if run:
            there = self._running_by_worker[run.worker_id]
            del there[ticket_id]
            if not there:
                del self._running_by_worker[run.worker_id]
        return run
