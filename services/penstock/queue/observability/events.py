"""Log lines of a shard: edges and schedulers that connect and leave, models that are served and lost, and the drain."""

from collections.abc import Collection
from typing import Any

import structlog

from penstock.chassis.streams.endpoint import StreamEndpoint
from penstock.queue.tickets.book import TicketBook

log = structlog.get_logger()


def log_connected(stream: StreamEndpoint[Any, Any], connected: int) -> None:
    """Log a peer. `connected`: streams of its tier, with this one."""
    log.info("peer_connected", **_names(stream), connected=connected)


def log_disconnected(stream: StreamEndpoint[Any, Any], connected: int, **facts: int) -> None:
    """Log a peer that has left. It is lost unless it has ended its stream."""
    if stream.has_peer_ended:
        reason = stream.end_reason or "ended"
        log.info("peer_disconnected", **_names(stream), connected=connected, because=reason, **facts)
    else:
        reason = stream.close_reason or "cut"
        log.warning("peer_lost", **_names(stream), connected=connected, because=reason, **facts)


def _names(stream: StreamEndpoint[Any, Any]) -> dict[str, str]:
    return {"peer": stream.hello.instance_id, "peer_tier": stream.hello.tier}


def log_models(before: Collection[str], after: Collection[str], waiting: int) -> None:
    """Log the models that schedulers have begun or ceased to serve. `waiting`: tickets of the shard."""
    for model in sorted(set(after) - set(before)):
        log.info("model_served", model=model)
    for model in sorted(set(before) - set(after)):
        log.warning("model_lost", model=model, waiting=waiting)


def log_handing_over(book: TicketBook) -> None:
    """Log the tickets that edges enqueue at other shards, as this one drains."""
    log.info("handing_over", waiting=book.model_queues.waiting.tickets, offered=book.offered)


def log_sheds(summary: dict[str, Any]) -> None:
    log.warning("tickets_shed", **summary)
