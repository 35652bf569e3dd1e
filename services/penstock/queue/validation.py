"""Validation of tickets from edges. An invalid ticket is a bug of its edge, not an error of a client."""

from penstock.chassis.durations import MAX_NANOS
from penstock.chassis.errors import InvalidArgument
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.v1.inference_pb2 import Priority

MAX_PREFIX_HASHES = 64
MAX_AVOIDED_WORKERS = 16
REQUIRED_FIELDS = (
    *("ticket_id", "tenant_id", "priority", "model", "prompt_tokens", "max_output_tokens"),
    "attempt",
)
_PRIORITIES = frozenset(Priority.values())


class TicketInvalid(InvalidArgument):
    """The ticket violates the protocol."""

    default_reason = "TICKET_INVALID"


def check_ticket(ticket: Ticket) -> None:
    """Raise TicketInvalid with the name of the first invalid field."""
    for name in REQUIRED_FIELDS:
        if not getattr(ticket, name):
            raise TicketInvalid(f"a ticket needs {name}", field=name)
    if ticket.priority not in _PRIORITIES:
        names = ", ".join(Priority.keys()[1:])
        raise TicketInvalid(f"priority is {ticket.priority}; allowed are {names}", field="priority")
    if not ticket.weight > 0:  # refuses NaN as well
        raise TicketInvalid("weight must be above 0", field="weight")
    for name in ("time_left_nanos", "age_nanos"):
        if getattr(ticket, name) > MAX_NANOS:
            raise TicketInvalid(f"{name} may be at most {MAX_NANOS}, which is 48 hours", field=name)
    if len(ticket.prefix_hashes) > MAX_PREFIX_HASHES:
        raise TicketInvalid(f"prefix_hashes may have at most {MAX_PREFIX_HASHES} entries", field="prefix_hashes")
    if len(ticket.avoid_workers) > MAX_AVOIDED_WORKERS:
        raise TicketInvalid(f"avoid_workers may have at most {MAX_AVOIDED_WORKERS} entries", field="avoid_workers")
