"""What an order without shards beside it makes of them."""


class Alone:
    def keep_up(self, priority: int, virtual_tokens: float) -> None:
        """Other shards are nothing to it."""
