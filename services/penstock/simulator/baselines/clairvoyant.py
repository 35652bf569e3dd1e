"""How even an order can be that knows all: the shipped one, told of every token as it comes, and of how many will.

It is charged step by step, not by reports, and by true lengths, not by the most that was declared. What it cannot do is
what no order can: stop what runs, or divide a ticket. So its gap is about the floor for the others.
"""

from collections.abc import Iterable

from penstock.queue.policies.classes import PriorityClasses
from penstock.queue.policies.cost import cost_of
from penstock.queue.policies.order import FitFn
from penstock.queue.policies.tenants import WeightedVtc
from penstock.queue.waiting import QueuedTicket
from penstock.simulator.mesh.engine import NEVER, Run


class Clairvoyant(PriorityClasses):
    """`ahead`: tokens of an answer that count before they come, of those that will come."""

    def __init__(self, ahead: float) -> None:
        super().__init__(WeightedVtc, min_share=0.0)
        self._ahead = ahead
        self._taken: dict[tuple[str, int, int], list[QueuedTicket]] = {}  # not seen at an engine yet, by what it tells
        self._tickets: dict[int, QueuedTicket] = {}  # by run

    def dropped(self) -> list[QueuedTicket]:
        return []

    def is_express(self, ticket: QueuedTicket) -> bool:
        """Let all go by counters: what goes first is another promise, and not a fairer one."""
        return False

    def pop_fitting(self, fit: FitFn) -> QueuedTicket | None:
        ticket = super().pop_fitting(fit)
        if ticket:
            self._taken.setdefault(_told(ticket), []).append(ticket)
            self._charge(ticket, ticket.max_output_tokens, 0)
        return ticket

    def push(self, ticket: QueuedTicket) -> None:
        self._forget(ticket)
        super().push(ticket)

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        """Take from reports alone that a ticket came to nothing; the rest is known already."""
        if cost <= cost_of(ticket, ticket.prompt_tokens, 0):
            self._forget(ticket)
            super().charge(ticket, 0.0)

    def stepped(self, runs: Iterable[Run], step: int) -> None:
        for run in runs:
            if ticket := self._ticket_of(run):
                self._charge(ticket, run.output, _emitted(run, step))
                if run.last != NEVER:
                    super().charge(ticket, cost_of(ticket, ticket.prompt_tokens, run.generated))
                    del self._tickets[run.run_id]

    def _ticket_of(self, run: Run) -> QueuedTicket | None:
        if run.run_id not in self._tickets and (taken := self._taken.get((run.tenant, run.prompt, run.declared))):
            self._tickets[run.run_id] = taken.pop(0)
        return self._tickets.get(run.run_id)

    def _forget(self, ticket: QueuedTicket) -> None:
        if ticket in (taken := self._taken.get(_told(ticket), [])):
            taken.remove(ticket)
        self._tickets = {run_id: each for run_id, each in self._tickets.items() if each is not ticket}

    def _charge(self, ticket: QueuedTicket, output: int, emitted: int) -> None:
        super().charge(ticket, cost_of(ticket, ticket.prompt_tokens, min(output, emitted + self._ahead)))


def _told(ticket: QueuedTicket) -> tuple[str, int, int]:
    return ticket.tenant_id, ticket.prompt_tokens, ticket.max_output_tokens


def _emitted(run: Run, step: int) -> int:
    return 0 if run.first == NEVER else step - run.first + 1
