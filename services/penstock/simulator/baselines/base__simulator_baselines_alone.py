"""What an order without shards beside it makes of them, and of tenants inside their shares."""

from penstock.queue.ticket import QueuedTicket


class SingleShardPolicy:
    def advance_virtual_time(self, priority: int, virtual_tokens: float) -> None:
        """Other shards are nothing to it."""

    def is_express(self, _: QueuedTicket) -> bool:
        return False
