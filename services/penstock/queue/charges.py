"""Tickets that run, so that what they were charged can be put right by what they are really served."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.queue.policies.cost import cost_of, cost_so_far
from penstock.queue.waiting import WaitingTicket

MAX_RUNS = 131_072  # tickets; of older ones the predicted charge stands
SILENCE = 300.0  # s; what runs is spoken of several times a second, but for what waits inside an engine
MOST_STEPS = 64  # since a run was told of: what stands still inside an engine is not charged for long
MAX_ENDED = 4_096  # tickets; an end may be taken back when a worker turns out to live


class Service(NamedTuple):
    """What a scheduler says that a ticket was served so far."""

    ticket_id: str
    prompt_tokens: int
    output_tokens: int
    ended: bool
    attempt: int
    first_token_after: float = 0.0  # s from its start at the worker; 0: none has come
    steps: int = 0  # that its worker had done by then; 0: unknown


@dataclass(slots=True)
class Run:
    ticket: WaitingTicket
    worker_id: str = ""
    steps: int = 0  # that the worker had done when it told last; 0: unknown
    prompt_tokens: int = 0  # served
    output_tokens: int = 0
    ended: bool = False
    heard_at: float = 0.0  # s
    is_timed: bool = False  # whether it is known when its first token came
    cost: float = 0.0  # what it is to be charged: a part of what is predicted ahead, until it has ended

    def reckon(self) -> None:
        if self.ended:
            self.cost = cost_of(self.ticket, self.prompt_tokens, self.output_tokens)
        else:
            self.cost = cost_so_far(self.ticket, self.output_tokens)

    def reckon_at(self, steps: int) -> None:
        """Reckon with a token for each step that its worker has done since it was told of, once it decodes."""
        if self.output_tokens and self.steps:
            made = self.output_tokens + min(MOST_STEPS, steps - self.steps)
            self.cost = max(self.cost, cost_so_far(self.ticket, min(made, self.ticket.max_output_tokens)))

    @property
    def is_answer(self) -> bool:
        """Tell whether it says how long its tenant's answers are: it is whole, as far as can be known here."""
        return self.ended and self.output_tokens > 0 and not self.ticket.resumes


@dataclass(slots=True)
class Charges:
    """Counts those that run, the longest unheard of first; those that have ended are remembered for a while."""

    _runs: OrderedDict[str, Run] = field(default_factory=OrderedDict)
    _at: dict[str, dict[str, Run]] = field(default_factory=dict)  # that run, by worker and ticket
    _ended: OrderedDict[str, Run] = field(default_factory=OrderedDict)
    _now: float = 0.0  # s; when time last passed

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[WaitingTicket]:
        """Yield the tickets that run."""
        return (run.ticket for run in self._runs.values())

    def begin(self, ticket: WaitingTicket, now: float, worker_id: str = "") -> None:
        """Follow a ticket that got a lease; an earlier attempt of it keeps the charge it has come to."""
        self._ended.pop(ticket.ticket_id, None)
        self._stop(ticket.ticket_id)
        self._go_on(Run(ticket, worker_id, heard_at=now))
        if len(self._runs) > MAX_RUNS:
            self._stop(next(iter(self._runs)))

    def served(self, service: Service) -> Run | None:
        """Put a ticket's run right and return it where its charge changes."""
        ticket_id = service.ticket_id
        run = self._runs.get(ticket_id) or self._ended.get(ticket_id)
        if run is None or run.ticket.attempt != service.attempt:
            return None
        run.steps = max(run.steps, service.steps)
        run.prompt_tokens = max(run.prompt_tokens, service.prompt_tokens)
        run.output_tokens = max(run.output_tokens, service.output_tokens)
        is_news = self._move(ticket_id, run, ended=service.ended)
        if not run.ended:
            run.heard_at = max(run.heard_at, self._now)
            self._runs.move_to_end(ticket_id)
        run.reckon()
        return run if is_news or run.cost != run.ticket.charged else None

    def stepped(self, worker_id: str, steps: int) -> list[Run]:
        """Return the runs at a worker that cost more by now, as it has done so many steps."""
        runs = list(self._at.get(worker_id, {}).values())
        for run in runs:
            run.reckon_at(steps)
        return [run for run in runs if run.cost > run.ticket.charged]

    def expire(self, now: float) -> list[Run]:
        """End those that nobody speaks of any more, and return them: their schedulers died before they could tell.

        One that is spoken of again runs again.
        """
        self._now, gone = now, []
        while self._runs and (oldest := next(iter(self._runs.values()))).heard_at + SILENCE <= now:
            self._move(oldest.ticket.ticket_id, oldest, ended=True)
            oldest.reckon()
            gone.append(oldest)
        return gone

    def revoke(self, ticket_id: str) -> Run | None:
        """Stop following a ticket whose lease is void before anything was served."""
        return self._stop(ticket_id)

    def _move(self, ticket_id: str, run: Run, *, ended: bool) -> bool:
        if run.ended == ended:
            return False
        run.ended = ended
        if ended:
            self._stop(ticket_id)
            self._ended[ticket_id] = run
        else:
            self._go_on(self._ended.pop(ticket_id))
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        return True

    def _go_on(self, run: Run) -> None:
        ticket_id = run.ticket.ticket_id
        self._runs[ticket_id] = self._at.setdefault(run.worker_id, {})[ticket_id] = run

    def _stop(self, ticket_id: str) -> Run | None:
        run = self._runs.pop(ticket_id, None)
        if run:
            there = self._at[run.worker_id]
            del there[ticket_id]
            if not there:
                del self._at[run.worker_id]
        return run
