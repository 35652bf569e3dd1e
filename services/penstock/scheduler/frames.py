"""Conversion of the dispatcher's effects to frames."""

from penstock.mesh.limits.bounds import COUNT, RATE, TOTAL_TOKENS, at_most
from penstock.mesh.v1 import queue_pb2, scheduler_pb2
from penstock.scheduler import effects as out


def to_queue(effect: out.ToQueue | out.CatalogUpdate) -> queue_pb2.DispatchRequest:
    match effect:
        case out.Place():
            return queue_pb2.DispatchRequest(place=queue_pb2.Place(lease=effect.lease))
        case out.Decline():
            decline = queue_pb2.Decline(ticket_id=effect.ticket_id, reason=effect.reason)
            return queue_pb2.DispatchRequest(decline=decline)
        case out.GrantCredit():
            credit = queue_pb2.Credit(
                model=effect.model,
                tickets=at_most(effect.tickets, COUNT),
                max_ticket_tokens=at_most(effect.max_ticket_tokens, COUNT),
                return_unused=effect.return_unused,
                tokens_per_second=min(effect.tokens_per_second, RATE),
                total_tokens=at_most(effect.total_tokens, TOTAL_TOKENS),
                express_tickets=at_most(effect.express_tickets, COUNT),
            )
            return queue_pb2.DispatchRequest(credit=credit)
        case out.SendPoolStats():
            return queue_pb2.DispatchRequest(pool_stats=effect.stats)
        case out.SendServiceReport():
            report = queue_pb2.ServiceReport(tickets=effect.tickets, workers=effect.workers, progress=effect.progress)
            return queue_pb2.DispatchRequest(service_report=report)
        case out.SendVirtualTimes():
            return queue_pb2.DispatchRequest(virtual_times=queue_pb2.VirtualTimes(times=effect.times))
        case out.SendPlacedPrompts():
            return queue_pb2.DispatchRequest(placed_prompts=effect.prompts)
        case out.CatalogUpdate():
            return queue_pb2.DispatchRequest(
                catalog=queue_pb2.Catalog(entries=effect.entries, poison_reports=effect.poison_reports)
            )


def to_worker(effect: out.ToWorker) -> scheduler_pb2.AttachResponse:
    match effect:
        case out.Expect():
            return scheduler_pb2.AttachResponse(expect=scheduler_pb2.Expect(lease=effect.lease))
        case out.Revoke():
            return scheduler_pb2.AttachResponse(revoke=scheduler_pb2.Revoke(lease_id=effect.lease_id))
