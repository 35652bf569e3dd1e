"""How far an edge may go without auth."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AuthFallbackLimits:
    outage_after: float = 1.0  # s of auth's silence until the edge decides by itself
    max_duration: float = 60.0  # s of an outage in which known callers are let in; after them, and at 0, nobody is
    identity_ttl: float = 600.0  # s since auth last let a caller in, until it is not known any more
    max_identities: int = 10_000  # remembered
    max_deferred: int = 20_000  # requests let in that auth does not know of yet
