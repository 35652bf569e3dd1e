"""Tickets that run, so that what they were charged can be put right by what they are really served."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.queue.policies.cost import cost_of, cost_so_far
from penstock.queue.waiting import WaitingTicket

MAX_RUNS = 131_072  # tickets; of older ones the predicted charge stands
SILENCE = 300.0  # s; what runs is spoken of several times a second, but for what waits inside an engine
MAX_ENDED = 4_096  # tickets; an end may be taken back when a worker turns out to live


class Service(NamedTuple):
    """What a scheduler says that a ticket was served so far."""

    ticket_id: str
    prompt_tokens: int
    output_tokens: int
    ended: bool
    attempt: int
    first_token_after: float = 0.0  # s from its start at the worker; 0: none has come


@dataclass(slots=True)
class Run:
    ticket: WaitingTicket
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

    @property
    def is_answer(self) -> bool:
        """Tell whether it says how long its tenant's answers are: it is whole, as far as can be known here."""
        return self.ended and self.output_tokens > 0 and not self.ticket.resumes


@dataclass(slots=True)
class Charges:
    """Counts those that run, the longest unheard of first; those that have ended are remembered for a while."""

    _runs: OrderedDict[str, Run] = field(default_factory=OrderedDict)
    _ended: OrderedDict[str, Run] = field(default_factory=OrderedDict)
    _now: float = 0.0  # s; when time last passed

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[WaitingTicket]:
        """Yield the tickets that run."""
        return (run.ticket for run in self._runs.values())

    def begin(self, ticket: WaitingTicket, now: float) -> None:
        """Follow a ticket that got a lease; an earlier attempt of it keeps the charge it has come to."""
        self._ended.pop(ticket.ticket_id, None)
        self._runs[ticket.ticket_id] = Run(ticket, heard_at=now)
        self._runs.move_to_end(ticket.ticket_id)
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)

    def served(self, service: Service) -> Run | None:
        """Put a ticket's run right and return it where its charge changes."""
        ticket_id = service.ticket_id
        run = self._runs.get(ticket_id) or self._ended.get(ticket_id)
        if run is None or run.ticket.attempt != service.attempt:
            return None
        run.prompt_tokens = max(run.prompt_tokens, service.prompt_tokens)
        run.output_tokens = max(run.output_tokens, service.output_tokens)
        is_news = self._move(ticket_id, run, ended=service.ended)
        if not run.ended:
            run.heard_at = max(run.heard_at, self._now)
            self._runs.move_to_end(ticket_id)
        run.reckon()
        return run if is_news or run.cost != run.ticket.charged else None

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
        return self._runs.pop(ticket_id, None)

    def _move(self, ticket_id: str, run: Run, *, ended: bool) -> bool:
        if run.ended == ended:
            return False
        run.ended = ended
        before, after = (self._runs, self._ended) if ended else (self._ended, self._runs)
        after[ticket_id] = before.pop(ticket_id)
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        return True
