"""What service counts for when tenants are compared, in weighted tokens."""

from penstock.queue.waiting import WaitingTicket

INPUT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0  # as the VTC paper and its successors have it, so that figures compare
PREPAID = 0.25  # share of the output still to come that is charged ahead


def cost_of(ticket: WaitingTicket, prompt_tokens: float, output_tokens: float) -> float:
    """Cost what a ticket gets. The prompt of resumed work is free: its tenant paid for it before a worker was lost."""
    return INPUT_WEIGHT * prompt_tokens * (not ticket.resumes) + OUTPUT_WEIGHT * output_tokens


def predicted_cost(ticket: WaitingTicket) -> float:
    return cost_of(ticket, ticket.prompt_tokens, ticket.output)


def cost_so_far(ticket: WaitingTicket, output_tokens: int) -> float:
    """Cost a ticket that runs and has had `output_tokens`.

    Charging only what has come lets a tenant fill the batch before its first bill, and tenants swing to and fro by as
    much as a batch holds; charging all of it ahead holds back whoever sends long answers for what it has not had yet.
    A part of it damps both.
    """
    to_come = max(0, ticket.output - output_tokens)
    return cost_of(ticket, ticket.prompt_tokens, output_tokens + PREPAID * to_come)
