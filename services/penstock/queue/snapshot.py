"""What operators see of a shard beyond its figures."""

from heapq import nlargest
from typing import Any

from penstock.queue.book import TicketBook
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
    return {"depth": _depth(book.shelves), "sheds": _sheds(book.tally), "predictions": _predictions(book.shelves)}


def prediction_figures(shelves: Shelves) -> dict[str, float]:
    """How far realised waits were from predicted ones of late, over all models, as shares of the realised."""
    errors = sorted(abs(each) for shelf in shelves for each in shelf.forecast.errors)
    return {f"wait_error_p{round(100 * q)}": errors[int(q * len(errors))] for q in QUANTILES if errors}


def _depth(shelves: Shelves) -> list[dict[str, Any]]:
    deepest = nlargest(MAX_TENANTS, shelves.by_tenant.items(), key=lambda row: row[1])
    return [
        {
            "class": class_name(priority),
            "tenant_id": tenant_id,
            "waiting": load.tickets,
            "waiting_tokens": load.tokens,
        }
        for (priority, tenant_id), load in deepest
    ]


def _sheds(tally: Tally) -> list[dict[str, Any]]:
    return [
        {"class": class_name(priority), "reason": reason, "tickets": tickets}
        for (priority, reason), tickets in sorted(tally.shed_by_class.items())
    ]


def _predictions(shelves: Shelves) -> list[dict[str, Any]]:
    """One row a model; quantiles are of realised over predicted waits, less 1: above 0 is later than was said."""
    rows = []
    for shelf in shelves:
        forecast, errors = shelf.forecast, sorted(shelf.forecast.errors)
        quantiles = {f"error_p{round(100 * q)}": errors[int(q * len(errors))] for q in SPREAD if errors}
        rows.append(
            {
                "model": shelf.model,
                "tokens_per_second": forecast.rate.full,
                "correction": forecast.correction,
                "waits": len(errors),
                **quantiles,
            }
        )
    return rows
