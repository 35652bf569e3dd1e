"""Cost of service in weighted tokens, by which tenants are compared."""

from penstock.queue.ticket import QueuedTicket

INPUT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0  # as in the VTC paper and its successors, so that figures can be compared
PREPAID_OUTPUT_TOKENS = 96  # output tokens charged in advance; about half a second of an engine


def cost_of(ticket: QueuedTicket, prompt_tokens: float, output_tokens: float) -> float:
    """Return the cost of service. The prompt of a resumed ticket is free, because an earlier attempt was charged."""
    output = OUTPUT_WEIGHT * output_tokens
    return output if ticket.attempt > 1 else INPUT_WEIGHT * prompt_tokens + output


def predicted_cost(ticket: QueuedTicket) -> float:
    return cost_of(ticket, ticket.prompt_tokens, ticket.expected_output)


def running_cost(ticket: QueuedTicket, output_tokens: int) -> float:
    """Return the cost of a running ticket: `output_tokens` and PREPAID_OUTPUT_TOKENS in advance.

    Without an advance, a tenant could fill the batch before it is charged for the first time, and the service of
    tenants would oscillate by the size of a batch. An advance of the whole predicted answer would delay tenants with
    long answers for service that they have not received. A constant advance per running ticket is proportional to the
    number of running tickets, which is the rate at which the tenant is served, and it needs no prediction.
    """
    charged_output = max(output_tokens, min(output_tokens + PREPAID_OUTPUT_TOKENS, ticket.max_output_tokens))
    return cost_of(ticket, ticket.prompt_tokens, charged_output)
