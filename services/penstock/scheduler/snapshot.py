"""Figures and tables of a scheduler for operators."""

from typing import Any

from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.fleet.fleet import Fleet
from penstock.scheduler.fleet.worker import Worker

MAX_WORKER_ROWS = 1_000


def figures(dispatcher: Dispatcher) -> dict[str, float]:
    fleet = dispatcher.fleet
    return {
        "workers": len(fleet),
        "queues": len(dispatcher.queues),
        "leases": len(dispatcher.leases),
        "leases_unstarted": dispatcher.leases.unstarted_count,
        "promised_blocks": dispatcher.promised_blocks,
        "available_leases": sum(worker.available_leases for worker in fleet),
        "credits": sum(credit.held_tickets for credit in dispatcher.credit_books.values()),
        "declines": dispatcher.decline_count,
        "prefix_blocks": sum(len(pool.prefix_index) for pool in fleet.pools.values()),
        "prefix_evictions": sum(pool.prefix_index.evicted_entries for pool in fleet.pools.values()),
        "service_reports_pending": len(dispatcher.service_reports),
    }


def tables(fleet: Fleet) -> dict[str, Any]:
    return {"workers": [_row(worker) for worker in sorted(fleet, key=lambda each: each.worker_id)[:MAX_WORKER_ROWS]]}


def _row(worker: Worker) -> dict[str, Any]:
    return {
        "worker_id": worker.worker_id,
        "address": worker.address,
        "zone": worker.zone,
        "model": worker.profile.model,
        "card_digest": worker.profile.card_digest,
        "slots": worker.profile.slots,
        "kv_blocks": worker.profile.kv_blocks,
        "leases": len(worker.promised),
        "promised_blocks": worker.promised_blocks,
        "available_leases": worker.available_leases,
        "running": worker.report.running,
        "prefill_tokens": worker.prefill_backlog_tokens,
        "tokens_per_second": worker.report.tokens_per_second,
    }
