"""What service counts for when tenants are compared, in weighted tokens."""

from penstock.queue.waiting import WaitingTicket

INPUT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0  # as the VTC paper and its successors have it, so that figures compare


def cost_of(ticket: WaitingTicket, prompt_tokens: float, output_tokens: float) -> float:
    """Cost what a ticket gets. The prompt of resumed work is free: its tenant paid for it before a worker was lost."""
    return INPUT_WEIGHT * prompt_tokens * (not ticket.resumes) + OUTPUT_WEIGHT * output_tokens


def predicted_cost(ticket: WaitingTicket) -> float:
    return cost_of(ticket, ticket.prompt_tokens, ticket.output)
