"""The interface of a database of responses behind a thread. All methods run in that thread."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.mesh.v1.responses_pb2 import StoreCall, StoreResult


class ResponseTotals(NamedTuple):
    """What is stored, of all tenants."""

    size: int = 0  # bytes
    responses: int = 0


class ResponseBackend(Protocol):
    """One database, or one connection to it. Its methods raise ResponseStoreUnavailable, except `perform`."""

    group_size: int  # most calls of one `perform`

    def open(self) -> None:
        """Open the database and migrate it, if that is its task. Raises StoreTooNew."""

    def perform(self, calls: Sequence[StoreCall]) -> list[StoreResult]:
        """Perform calls in order. Return their results; each that could not be performed is STORE_UNAVAILABLE."""

    def run_upkeep(self) -> bool:
        """Do a slice of the upkeep. Return whether more is due."""

    def delete_of_tenant(self, tenant_id: str) -> bool:
        """Delete some responses of a tenant. Return whether it has more."""

    def totals(self) -> ResponseTotals:
        """Return what is stored."""

    def close(self) -> None: ...
