"""Clairvoyant policy: the shipped policy with exact knowledge of every token and of the length of every answer.

It charges each token in its step instead of by reports, and true lengths instead of declared limits. Like every policy,
it can neither stop a run nor divide a ticket. Its service gap is therefore about the lower bound for other policies.
"""

from collections.abc import Iterable

from penstock.queue.policies.cost import cost_of
from penstock.queue.policies.fair_share import WeightedVtc
from penstock.queue.policies.policy import FitFn
from penstock.queue.policies.priority_classes import PriorityClasses
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.mesh.engine import NO_STEP, SimRun


class ClairvoyantPolicy(PriorityClasses):
    """Charges the next `lookahead_tokens` of an answer in advance, as far as the answer has them."""

    def __init__(self, lookahead_tokens: float) -> None:
        super().__init__(WeightedVtc, min_share=0.0)
        self._lookahead_tokens = lookahead_tokens
        self._unmatched: dict[tuple[str, int, int], list[QueuedTicket]] = {}  # not seen in an engine yet
        self._ticket_by_run: dict[int, QueuedTicket] = {}

    def pop_dropped(self) -> list[QueuedTicket]:
        return []

    def is_express(self, ticket: QueuedTicket) -> bool:
        """Return False: the policy is about fairness alone, and express tickets overtake others."""
        return False

    def pop_fitting(self, fit: FitFn) -> QueuedTicket | None:
        ticket = super().pop_fitting(fit)
        if ticket:
            self._unmatched.setdefault(_matching_key(ticket), []).append(ticket)
            self._charge_known(ticket, ticket.max_output_tokens, 0)
        return ticket

    def push(self, ticket: QueuedTicket) -> None:
        self._discard(ticket)
        super().push(ticket)

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        """Ignore reports, except for a ticket that ended without a token."""
        if cost <= cost_of(ticket, ticket.prompt_tokens, 0):
            self._discard(ticket)
            super().charge(ticket, 0.0)

    def on_step(self, runs: Iterable[SimRun], step: int) -> None:
        for run in runs:
            if ticket := self._ticket_of(run):
                self._charge_known(ticket, run.output_tokens, _emitted_tokens(run, step))
                if run.last_token_step != NO_STEP:
                    super().charge(ticket, cost_of(ticket, ticket.prompt_tokens, run.generated_tokens))
                    del self._ticket_by_run[run.run_id]

    def _ticket_of(self, run: SimRun) -> QueuedTicket | None:
        if run.run_id not in self._ticket_by_run and (
            candidates := self._unmatched.get((run.tenant, run.prompt_tokens, run.max_output_tokens))
        ):
            self._ticket_by_run[run.run_id] = candidates.pop(0)
        return self._ticket_by_run.get(run.run_id)

    def _discard(self, ticket: QueuedTicket) -> None:
        if ticket in (candidates := self._unmatched.get(_matching_key(ticket), [])):
            candidates.remove(ticket)
        self._ticket_by_run = {run_id: each for run_id, each in self._ticket_by_run.items() if each is not ticket}

    def _charge_known(self, ticket: QueuedTicket, output: int, emitted: int) -> None:
        super().charge(ticket, cost_of(ticket, ticket.prompt_tokens, min(output, emitted + self._lookahead_tokens)))


def _matching_key(ticket: QueuedTicket) -> tuple[str, int, int]:
    return ticket.tenant_id, ticket.prompt_tokens, ticket.max_output_tokens


def _emitted_tokens(run: SimRun, step: int) -> int:
    return 0 if run.first_token_step == NO_STEP else step - run.first_token_step + 1
