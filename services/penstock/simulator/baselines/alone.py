"""What an order without shards beside it makes of them, and of tenants inside their shares."""

from penstock.queue.waiting import WaitingTicket


class Alone:
    def keep_up(self, priority: int, virtual_tokens: float) -> None:
        """Other shards are nothing to it."""

    def is_urgent(self, _: WaitingTicket) -> bool:
        return False
