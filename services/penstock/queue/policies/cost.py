"""What service counts for when tenants are compared, in weighted tokens."""

from penstock.queue.ticket import QueuedTicket

INPUT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0  # as the VTC paper and its successors have it, so that figures compare
PREPAID_OUTPUT_TOKENS = 96  # tokens of an answer that are charged before they come; about half a second of an engine


def cost_of(ticket: QueuedTicket, prompt_tokens: float, output_tokens: float) -> float:
    """Cost what a ticket gets. The prompt of resumed work is free: its tenant paid for it before a worker was lost."""
    output = OUTPUT_WEIGHT * output_tokens
    return output if ticket.attempt > 1 else INPUT_WEIGHT * prompt_tokens + output


def predicted_cost(ticket: QueuedTicket) -> float:
    return cost_of(ticket, ticket.prompt_tokens, ticket.expected_output)


def running_cost(ticket: QueuedTicket, output_tokens: int) -> float:
    """Cost a ticket that runs and has had `output_tokens`: those, and the few that are on their way.

    A counter that knows only what has come lets a tenant fill the batch before its first bill, and tenants swing to and
    fro by as much as a batch holds. Charging all of a prediction ahead damps that, but holds back whoever sends long
    answers for what it has not had yet. The same few tokens for each that runs weigh how many a tenant has running,
    which is how fast it is served: that damps without favour, and needs no prediction.
    """
    upto = max(output_tokens, min(output_tokens + PREPAID_OUTPUT_TOKENS, ticket.max_output_tokens))
    return cost_of(ticket, ticket.prompt_tokens, upto)
