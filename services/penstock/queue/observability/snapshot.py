"""Tables of a shard for operators: models, depth, sheds and predictions."""

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from typing import Any

from penstock.mesh.class_names import class_name
from penstock.mesh.model_key import model_digest, model_name
from penstock.queue.models.model_queue import ModelQueues
from penstock.queue.policies.policy import NO_TICKETS
from penstock.queue.tickets.book import TicketBook
from penstock.queue.tickets.counters import ShardCounters

WAIT_QUANTILES = (0.5, 0.95)
LATENESS_QUANTILES = (0.05, 0.5, 0.95)
MAX_TENANT_ROWS = 50  # rows; the tenants with the most waiting tickets


def tables(book: TicketBook) -> dict[str, Any]:
    return {
        "models": _models(book),
        "depth": _depth(book),
        "sheds": _sheds(book.counters),
        "predictions": _predictions(book.model_queues),
    }


def prediction_figures(model_queues: ModelQueues) -> dict[str, float]:
    """Return quantiles of the error of recent wait predictions over all models, in s."""
    return _quantiles(
        "wait_error_s",
        WAIT_QUANTILES,
        [abs(each.lateness) for queue in model_queues for each in queue.forecast.recent_waits],
    )


def _models(book: TicketBook) -> list[dict[str, Any]]:
    running = Counter(ticket.model for ticket in book.accounting)
    waiting, tokens = Counter[str](), Counter[str]()
    for (model, _, _), totals in book.model_queues.totals_by_tenant.items():
        waiting[model] += totals.tickets
        tokens[model] += totals.tokens
    return [
        {
            "model": model_name(queue.model),
            "card_digest": model_digest(queue.model),
            "waiting": waiting[queue.model],
            "waiting_tokens": tokens[queue.model],
            "running": running[queue.model],
            "credit": book.schedulers.credit_for(queue.model),
            "leased": book.counters.leased_by_model.get(queue.model, 0),
        }
        for queue in book.model_queues
        if waiting[queue.model] or running[queue.model] or any(book.schedulers.schedulers_serving(queue.model))
    ]


def _depth(book: TicketBook) -> list[dict[str, Any]]:
    """Return one row per model, class and tenant with waiting or running tickets."""
    running = Counter((ticket.model, ticket.priority, ticket.tenant_id) for ticket in book.accounting)
    waiting = book.model_queues.totals_by_tenant
    totals = {key: (*waiting.get(key, NO_TICKETS), running[key]) for key in waiting.keys() | running.keys()}
    deepest = nlargest(MAX_TENANT_ROWS, totals.items(), key=lambda row: (row[1], row[0]))
    return [
        {
            "model": model_name(model),
            "card_digest": model_digest(model),
            "class": class_name(priority),
            "tenant_id": tenant_id,
            "waiting": tickets,
            "waiting_tokens": tokens,
            "running": runs,
        }
        for (model, priority, tenant_id), (tickets, tokens, runs) in deepest
    ]


def _sheds(counters: ShardCounters) -> list[dict[str, Any]]:
    return [
        {"class": class_name(priority), "reason": reason, "tickets": tickets}
        for (priority, reason), tickets in sorted(counters.shed_by_class.items())
    ]


def _predictions(model_queues: ModelQueues) -> list[dict[str, Any]]:
    """Return one row per model: recent waits in s, and by how much they exceeded their predictions."""
    rows = []
    for queue in model_queues:
        forecast, waits = queue.forecast, queue.forecast.recent_waits
        rows.append(
            {
                "model": model_name(queue.model),
                "card_digest": model_digest(queue.model),
                "tokens_per_second": forecast.service_rate.saturated,
                "correction": forecast.correction,
                "headroom": forecast.headroom,
                "waits": len(waits),
                **_quantiles("waited_s", WAIT_QUANTILES, [each.realised for each in waits]),
                **_quantiles("late_s", LATENESS_QUANTILES, [each.lateness for each in waits]),
            }
        )
    return rows


def _quantiles(name: str, shares: Sequence[float], values: Sequence[float]) -> dict[str, float]:
    """Return quantiles by name, such as `waited_s_p50`; empty if there are no values."""
    ordered = sorted(values)
    return {f"{name}_p{round(100 * share)}": ordered[int(share * len(ordered))] for share in shares if ordered}
