"""Stored responses of one world: starts their clients, and checks what they and the store have."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.faults.checks.checker import Violation
from penstock.faults.checks.responses import StoredRow, check_response_store, check_responses
from penstock.faults.plan import WorldPlan
from penstock.faults.world.clients.response_clients import (
    ResponseTranscript,
    audit_responses,
    run_response_clients,
    transcripts_of,
)
from penstock.faults.world.stores.response_disk import ResponseDisk
from penstock.faults.world.tenants import api_keys
from penstock.faults.world.world import World

CLIENT_PROCESS = "responseclient"

_ROWS_QUERY = "SELECT response_id, status, lease_until, cancel_requested FROM responses ORDER BY number"
_ORPHANS_QUERY = """
    SELECT (SELECT count(*) FROM response_contents WHERE number NOT IN (SELECT number FROM responses))
        + (SELECT count(*) FROM response_tokens WHERE number NOT IN (SELECT number FROM responses))
"""


@dataclass
class ResponseRun:
    """The responses of one world."""

    plan: WorldPlan
    world: World
    disk: ResponseDisk
    chains: list[list[ResponseTranscript]] = field(init=False)

    def __post_init__(self) -> None:
        self.chains = transcripts_of(self.plan.responses)

    @property
    def begun(self) -> list[ResponseTranscript]:
        """The turns that a client has sent; the later turns of a chain need the end of the earlier ones."""
        return [each for chain in self.chains for each in chain if each.was_sent]

    @property
    def prompt_lengths(self) -> set[int]:
        return {len(turn.planned.request.prompt) for chain in self.chains for turn in chain}

    def start_clients(self) -> Iterator[asyncio.Task[None]]:
        """Start the process of the clients; none if the world has no responses."""
        targets, keys = self.plan.shape.http_addresses, api_keys(self.plan.tenants)
        if self.chains:
            loop = self.world.add_loop(CLIENT_PROCESS)
            with self.world.running_as(loop):
                yield loop.create_task(run_response_clients(targets, keys, self.chains))

    def start_audit(self) -> Iterator[asyncio.Task[None]]:
        """Start the process that retrieves each response at each edge."""
        targets, keys = self.plan.shape.http_addresses, api_keys(self.plan.tenants)
        if self.chains:
            loop = self.world.add_loop(CLIENT_PROCESS)
            with self.world.running_as(loop):
                yield loop.create_task(audit_responses(targets, keys, self.begun))

    def violations(self, *, has_faults: bool, was_store_away: bool, now: float) -> Iterator[Violation]:
        """Yield the violations at the end. `now`: Unix s of the store."""
        yield from check_responses(self.begun, has_faults=has_faults, was_store_away=was_store_away)
        rows = [StoredRow(*row) for row in self.disk.query(_ROWS_QUERY)]
        orphans = sum(count for (count,) in self.disk.query(_ORPHANS_QUERY))
        yield from check_response_store(rows, orphans, now)

    def of_tenant(self, number: int) -> list[ResponseTranscript]:
        return [each for each in self.begun if each.planned.request.tenant == number]
