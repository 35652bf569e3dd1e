"""What operators see of a shard beyond its figures."""

from collections import Counter
from heapq import nlargest
from typing import Any

from penstock.queue.book import TicketBook
from penstock.queue.policies.order import NOTHING
from penstock.queue.shelves import Shelves
from penstock.queue.tally import Tally
from penstock.v1.inference_pb2 import Priority

QUANTILES = (0.5, 0.95)
SPREAD = (0.05, 0.5, 0.95)
MAX_TENANTS = 50  # rows; whoever has most tickets waiting


def class_name(priority: int) -> str:
    name = Priority.Name(priority)  # type: ignore[arg-type]  # an int that came from this very enum
    return name.removeprefix("PRIORITY_").lower()


def tables(book: TicketBook) -> dict[str, Any]:
    return {
        "models": _models(book),
        "depth": _depth(book),
        "sheds": _sheds(book.tally),
        "predictions": _predictions(book.shelves),
    }


def prediction_figures(shelves: Shelves) -> dict[str, float]:
    """How far realised waits were from predicted ones of late, over all models, as shares of the realised."""
    errors = sorted(abs(each) for shelf in shelves for each in shelf.forecast.errors)
    return {f"wait_error_p{round(100 * q)}": errors[int(q * len(errors))] for q in QUANTILES if errors}


def _models(book: TicketBook) -> list[dict[str, Any]]:
    running = Counter(ticket.model for ticket in book.charges)
    waiting, tokens = Counter[str](), Counter[str]()
    for (model, _, _), load in book.shelves.by_tenant.items():
        waiting[model] += load.tickets
        tokens[model] += load.tokens
    return [
        {
            "model": shelf.model,
            "waiting": waiting[shelf.model],
            "waiting_tokens": tokens[shelf.model],
            "running": running[shelf.model],
            "credit": book.seats.credit_for(shelf.model),
            "leased": book.tally.leased_by_model.get(shelf.model, 0),
        }
        for shelf in book.shelves
    ]


def _depth(book: TicketBook) -> list[dict[str, Any]]:
    """One row a model, class and tenant that has tickets waiting or running."""
    running = Counter((ticket.model, ticket.priority, ticket.tenant_id) for ticket in book.charges)
    waiting = book.shelves.by_tenant
    loads = {whose: (*waiting.get(whose, NOTHING), running[whose]) for whose in waiting.keys() | running.keys()}
    deepest = nlargest(MAX_TENANTS, loads.items(), key=lambda row: (row[1], row[0]))
    return [
        {
            "model": model,
            "class": class_name(priority),
            "tenant_id": tenant_id,
            "waiting": tickets,
            "waiting_tokens": tokens,
            "running": runs,
        }
        for (model, priority, tenant_id), (tickets, tokens, runs) in deepest
    ]


def _sheds(tally: Tally) -> list[dict[str, Any]]:
    return [
        {"class": class_name(priority), "reason": reason, "tickets": tickets}
        for (priority, reason), tickets in sorted(tally.shed_by_class.items())
    ]


def _predictions(shelves: Shelves) -> list[dict[str, Any]]:
    """One row a model; errors are shares of the realised wait: above 0 is later than was said."""
    rows = []
    for shelf in shelves:
        forecast, errors = shelf.forecast, sorted(shelf.forecast.errors)
        quantiles = {f"error_p{round(100 * q)}": errors[int(q * len(errors))] for q in SPREAD if errors}
        rows.append(
            {
                "model": shelf.model,
                "tokens_per_second": forecast.rate.full,
                "correction": forecast.correction,
                "headroom": forecast.headroom,
                "waits": len(errors),
                **quantiles,
            }
        )
    return rows
