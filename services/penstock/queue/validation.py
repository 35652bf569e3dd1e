"""Validation of tickets from edges. An invalid ticket is a bug of its edge, not an error of a client."""

from penstock.chassis.errors import InvalidArgument
from penstock.mesh.limits.compiler import check_of
from penstock.mesh.limits.violations import violation_of
from penstock.mesh.v1.ticket_pb2 import Ticket

REQUIRED_FIELDS = (
    *("ticket_id", "tenant_id", "priority", "model", "prompt_tokens", "max_output_tokens"),
    "attempt",
)
_is_out_of_range = check_of(Ticket.DESCRIPTOR)


class TicketInvalid(InvalidArgument):
    """The ticket violates the protocol."""

    default_reason = "TICKET_INVALID"


def check_ticket(ticket: Ticket) -> None:
    """Raise TicketInvalid with the name of the first invalid field."""
    for name in REQUIRED_FIELDS:
        if not getattr(ticket, name):
            raise TicketInvalid(f"a ticket needs {name}", field=name)
    if not ticket.weight > 0:  # refuses NaN as well
        raise TicketInvalid("weight must be above 0", field="weight")
    if _is_out_of_range and _is_out_of_range(ticket) and (found := violation_of(ticket)):
        raise TicketInvalid(str(found), field=found.field)
