"""The order in which a worker prefills prompts, which the queue's predictions share. Pure."""

from penstock.v1.inference_pb2 import Priority

EXPRESS_RANK = 0
DEFAULT_RANK = 1
BATCH_RANK = 2


def prefill_rank(priority: int, *, is_express: bool) -> int:
    """Return the rank of a ticket's prompt. Prompts of lower ranks are prefilled first.

    The class `batch` is last, because nobody waits for its first tokens. The other classes have one order, so that the
    prompt of a standard ticket that was promised a first token keeps its turn.
    """
    if priority == Priority.PRIORITY_BATCH:
        return BATCH_RANK
    return EXPRESS_RANK if is_express else DEFAULT_RANK
