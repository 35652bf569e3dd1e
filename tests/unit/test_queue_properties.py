"""In any order of events, no ticket is lost or duplicated, and totals match the tickets."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.chassis.errors import Overloaded
from penstock.queue import effects as out
from penstock.queue.accounting import ServedTicket
from penstock.queue.admission.admission import TtftTargets
from penstock.queue.models.model_queue import RETRY_AFTER_BOUNDS_S
from penstock.queue.policies.cost import predicted_cost
from penstock.queue.policies.policy import TicketTotals
from penstock.queue.prediction.pool_stats import PoolStats
from queue_tickets import MODEL_TIMEOUT_S, ShardDriver, entry

MODELS = ("m", "n")
EDGES = ("e", "f")
SCHEDULERS = ("s", "t")
TENANTS = ("acme", "umbrella", "initech")
TICKETS = [f"t{number}" for number in range(12)]


class Mesh(RuleBasedStateMachine):
    """Edges and schedulers that send any frames that real ones may send, and record the frames that they receive."""

    def __init__(self):
        super().__init__()
        self.shard = ShardDriver(max_depth=8, max_tokens=2_000, ttft_targets=TtftTargets({1: 2.0, 2: 10.0}))
        self.running = {}  # attempt by ticket, as seen by schedulers
        self.held = {edge: {} for edge in EDGES}  # attempt by ticket, as seen by each edge
        self.unanswered = {}  # offers in order, by scheduler
        self.credit = {}  # tickets by scheduler and model, as seen by the scheduler
        self.express_credit = {}  # the same for express credit
        self.lease_ids = 0
        self.last_effects = []

    # Effects.

    def apply_effects(self, effects):
        self.last_effects = effects
        for effect in effects:
            match effect:
                case out.Offer():
                    ticket = effect.ticket
                    assert ticket.ticket_id in self.held[ticket.edge], "an offered ticket is in the book"
                    self.unanswered[effect.scheduler].append(ticket.ticket_id)
                    credit = self.express_credit if effect.uses_express_credit else self.credit
                    assert ticket.is_expedited or not effect.uses_express_credit, (
                        "express credit is for expedited tickets"
                    )
                    credit[effect.scheduler, ticket.model] -= 1
                    assert credit[effect.scheduler, ticket.model] >= 0, "each offer uses credit"
                case out.CreditReturned():
                    self.credit[effect.scheduler, effect.model] -= effect.tickets
                    assert self.credit[effect.scheduler, effect.model] == 0
                case out.Leased():
                    self.running[effect.lease.ticket_id] = effect.lease.attempt
                    assert self.held[effect.edge].pop(effect.lease.ticket_id), "only waiting tickets are leased"
                case out.Shed():
                    assert self.held[effect.edge].pop(effect.ticket_id), "only waiting tickets are shed"
                    assert effect.error.reason
                    if isinstance(effect.error, Overloaded):
                        assert RETRY_AFTER_BOUNDS_S[0] <= effect.error.retry_after <= RETRY_AFTER_BOUNDS_S[1], (
                            "the error has a retry time"
                        )
                case out.Queued():
                    assert effect.ticket_id in self.held[effect.edge]
                case _:
                    pass
        return effects

    # Rules.

    @rule(
        ticket_id=st.sampled_from(TICKETS),
        edge=st.sampled_from(EDGES),
        attempt=st.integers(1, 3),
        model=st.sampled_from(MODELS),
        priority=st.integers(1, 3),
        tenant=st.sampled_from(TENANTS),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
        tokens=st.integers(11, 800),
        seconds_left=st.none() | st.integers(1, 60),
    )
    def enqueue(self, *, ticket_id, edge, attempt, model, priority, tenant, weight, tokens, seconds_left):
        other = next(each for each in EDGES if each != edge)
        if self.held[edge].get(ticket_id, 0) > attempt:
            return
        self.held[other].pop(ticket_id, None)  # the edge has a new stream
        known = self.shard.book.tickets.get(ticket_id)
        is_same = known is not None and known.edge == edge and known.attempt == attempt
        self.held[edge][ticket_id] = attempt
        deadline = self.shard.now + seconds_left if seconds_left else 0.0
        fields = {"attempt": attempt, "model": model, "priority": priority, "tokens": tokens, "deadline": deadline}
        fields |= {"tenant_id": tenant, "weight": weight}
        effects = self.apply_effects(self.shard.enqueue(ticket_id, edge=edge, enqueued=self.shard.now, **fields))
        if is_same:
            assert [type(each) for each in effects] == [out.Queued]
        answers = [each for each in effects if isinstance(each, out.Queued | out.Shed) and each.ticket_id == ticket_id]
        assert len(answers) == 1, "each ticket is answered once"

    @rule(ticket_ids=st.sets(st.sampled_from(TICKETS)), edge=st.sampled_from(EDGES))
    def withdraw(self, ticket_ids, edge):
        for each in EDGES:
            for ticket_id in ticket_ids:
                self.held[each].pop(ticket_id, None)
        effects = self.apply_effects(self.shard.withdraw(*ticket_ids, edge=edge))
        assert isinstance(effects[-1], out.Withdrawn)

    @rule(edge=st.sampled_from(EDGES))
    def lose_edge(self, edge):
        self.held[edge].clear()
        self.apply_effects(self.shard.book.on_edge_disconnected(edge))
        self.apply_effects(self.shard.book.on_edge_connected(edge))

    @rule(scheduler=st.sampled_from(SCHEDULERS), models=st.sets(st.sampled_from(MODELS)))
    def serve(self, scheduler, models):
        if scheduler not in self.unanswered:
            self.unanswered[scheduler] = []
            self.credit |= {(scheduler, model): 0 for model in MODELS}
            self.express_credit |= {(scheduler, model): 0 for model in MODELS}
            self.apply_effects(self.shard.book.on_scheduler_connected(scheduler, self.shard.now))
        entries = [entry(model) for model in models]
        self.apply_effects(self.shard.book.on_catalog(scheduler, entries, self.shard.now))

    @precondition(lambda self: self.unanswered)
    @rule(
        data=st.data(),
        model=st.sampled_from(MODELS),
        tickets=st.integers(0, 4),
        max_tokens=st.just(0) | st.integers(11, 900),
        free_tokens=st.none() | st.integers(1, 2_000),
        express=st.integers(0, 2),
        once=st.booleans(),
    )
    def give_credit(self, *, data, model, tickets, max_tokens, free_tokens, express, once):
        scheduler = data.draw(st.sampled_from(sorted(self.unanswered)))
        self.credit[scheduler, model] += tickets
        self.express_credit[scheduler, model] += express
        given = {
            "max_tokens": max_tokens,
            "rate": 100.0,
            "total_tokens": free_tokens,
            "express": express,
            "return_unused": once,
            "model": model,
        }
        at = len(self.shard.effects)
        self.shard.credit(tickets, scheduler, **given)
        self.apply_effects(self.shard.effects[at:])

    @precondition(lambda self: any(self.unanswered.values()))
    @rule(data=st.data(), answer=st.sampled_from(["place", "place", "NO_CAPACITY", "NO_WORKER"]))
    def answer(self, data, answer):
        """Answer the oldest offer of a scheduler."""
        busy = sorted(scheduler for scheduler, offers in self.unanswered.items() if offers)
        scheduler = data.draw(st.sampled_from(busy))
        ticket_id = self.unanswered[scheduler].pop(0)
        if answer == "place":
            self.lease_ids += 1
            known = self.shard.book.tickets.get(ticket_id)
            attempt = known.attempt if known else 1
            self.apply_effects(self.shard.place(ticket_id, scheduler, f"lease {self.lease_ids}", attempt))
            return
        if answer == "NO_CAPACITY" and ticket_id in self.shard.book.schedulers[scheduler].offered:
            model = self.shard.book.tickets[ticket_id].model
            if not self.shard.book.schedulers[scheduler].void_offers[ticket_id]:
                self.credit[scheduler, model] = self.express_credit[scheduler, model] = 0
        self.apply_effects(self.shard.decline(ticket_id, answer, scheduler))

    @precondition(lambda self: self.unanswered)
    @rule(
        data=st.data(),
        model=st.sampled_from(MODELS),
        rate=st.sampled_from([0.0, 50.0, 5_000.0]),
        free=st.integers(0, 4),
    )
    def report(self, data, model, rate, free):
        scheduler = data.draw(st.sampled_from(sorted(self.unanswered)))
        speed = PoolStats(self.shard.now, rate, rate, next_worker_backlog=100, step_time=0.05, free_slots=free)
        self.apply_effects(self.shard.book.on_pool_stats(scheduler, model, speed))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), prompt=st.integers(0, 900), output=st.integers(0, 40), ended=st.booleans())
    def report_service(self, data, prompt, output, ended):
        ticket_id = data.draw(st.sampled_from(sorted(self.running)))
        self.apply_effects(
            self.shard.book.on_service_report([ServedTicket(ticket_id, prompt, output, ended, self.running[ticket_id])])
        )

    @precondition(lambda self: self.unanswered)
    @rule(data=st.data())
    def lose_scheduler(self, data):
        scheduler = data.draw(st.sampled_from(sorted(self.unanswered)))
        del self.unanswered[scheduler]
        self.apply_effects(self.shard.disconnect(scheduler))

    @rule(seconds=st.sampled_from([0.05, 0.2, 3.0, 20.0]))
    def wait(self, seconds):
        self.apply_effects(self.shard.pass_time(seconds))

    # Invariants.

    @invariant()
    def the_shard_has_the_tickets_of_the_edges(self):
        has = {edge: {} for edge in EDGES}
        for ticket_id, ticket in self.shard.book.tickets.items():
            has[ticket.edge][ticket_id] = ticket.attempt
        assert has == self.held

    @invariant()
    def every_ticket_is_listed_once(self):
        book = self.shard.book
        occurrences = Counter()
        for model in MODELS:
            for each in book.model_queues[model].policy._classes.values():
                occurrences.update(ticket.ticket_id for ticket in (*each.resumed, *each.express, *each.tenant_queue))
        occurrences.update(entry[-1].ticket_id for entry in book._transitions.expirations.pauses)
        for session in book.schedulers.values():
            occurrences.update(session.offered)
        assert occurrences == Counter(book.tickets.keys())

    @invariant()
    def totals_match_the_tickets(self):
        book = self.shard.book
        waiting = [ticket for ticket in book.tickets.values() if not ticket.offered_to]
        assert book.model_queues.waiting == TicketTotals(len(waiting), sum(ticket.tokens for ticket in waiting))
        assert +Counter(book.model_queues.tickets_by_class) == Counter(ticket.priority for ticket in waiting)
        for model in MODELS:
            listed = [ticket for ticket in waiting if ticket.model == model and ticket.is_listed]
            assert book.model_queues[model].policy.totals == TicketTotals(
                len(listed), sum(ticket.tokens for ticket in listed)
            )

    @invariant()
    def queue_totals_match_their_tickets(self):
        for model in MODELS:
            for each in self.shard.book.model_queues[model].policy._classes.values():
                for line in (each.resumed, each.express, each.tenant_queue):
                    tickets = list(line)
                    assert (line.tickets, line.work) == (len(tickets), sum(ticket.work for ticket in tickets))
                for account in each.tenant_queue._accounts.values():
                    assert account.is_waiting == bool(account.queue and account.queue.tickets)
                    costs = sum(predicted_cost(ticket) / ticket.weight for ticket in account.queue or ())
                    assert account.queued_cost == pytest.approx(costs)

    @invariant()
    def waiting_tickets_are_not_charged(self):
        assert not any(ticket.charged_cost for ticket in self.shard.book.tickets.values() if not ticket.offered_to)

    @invariant()
    def overdue_tickets_are_not_offered(self):
        assert not any(
            isinstance(each, out.Offer) and 0 < each.ticket.lease_deadline <= self.shard.now
            for each in self.last_effects
        )

    @invariant()
    def credit_matches_the_schedulers(self):
        for scheduler in self.unanswered:
            for model, credit in self.shard.book.schedulers[scheduler].credits.items():
                assert credit.tickets == self.credit[scheduler, model]
                assert credit.express_tickets == self.express_credit[scheduler, model]

    @invariant()
    def no_credit_idles_while_a_fitting_ticket_waits(self):
        book = self.shard.book
        for session in book.schedulers.values():
            for model, credit in session.credits.items():
                if credit.tickets and credit.largest_fitting_tokens is None:
                    head = book.model_queues[model].policy.head()
                    assert head is None or head[0].refused_by

    def teardown(self):
        """Serve all waiting tickets, and check that no state is left."""
        for scheduler in list(self.unanswered):
            self.apply_effects(self.shard.disconnect(scheduler))
            del self.unanswered[scheduler]
        self.serve("last", set(MODELS))
        self.wait(0.2)  # ends the pauses
        for model in MODELS:
            self.credit["last", model] += 100
            for ticket_id in self.shard.credit(100, "last", model=model):
                self.apply_effects(
                    self.shard.place(ticket_id, "last", attempt=self.shard.book.tickets[ticket_id].attempt)
                )
        for ticket_id, attempt in self.running.items():
            self.shard.book.on_service_report([ServedTicket(ticket_id, 0, 0, has_ended=True, attempt=attempt)])
        assert len(self.shard.book.accounting) == 0, "all tickets have ended"
        self.shard.pass_time(MODEL_TIMEOUT_S)
        assert repr(self.shard.book) == "<TicketBook 0 waiting, 0 offered, 0 placed>"
        assert self.shard.book.model_queues.waiting == TicketTotals(0, 0)
        assert not self.shard.book._transitions.refused_tickets


Mesh.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMesh = Mesh.TestCase
