"""How far an edge may go without auth."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class GraceLimits:
    after: float = 1.0  # s of auth's silence until the edge decides by itself
    lasts: float = 60.0  # s of an outage in which known callers are let in; after them, and at 0, nobody is
    memory: float = 600.0  # s since auth last let a caller in, until it is not known any more
    callers: int = 10_000  # remembered
    unbooked: int = 20_000  # requests let in that auth does not know of yet
