"""Edges in one process that hold many waiting tickets: each has its stream to a shard and sends all of them to it.

`python edge_streams.py FIRST COUNT TICKETS ADDRESS` connects the edges at the first line on standard input. It writes
the number of tickets that were queued, leased and rejected to standard output, several times a second and at the first
lease.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from penstock.chassis.channels import channel
from penstock.chassis.garbage import freeze_gc
from penstock.chassis.lifecycle import run
from penstock.chassis.streams.link import Link
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1.queue_pb2 import Enqueue, SubmitRequest
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceStub
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.v1.inference_pb2 import PRIORITY_STANDARD

TENANTS = 100
MODEL = "m"
PROMPT_TOKENS, MAX_OUTPUT_TOKENS = 500, 200
WAITED_S = 1.0  # age of a ticket
FIGURES_PER_S = 20


class WaitingEdge:
    """One edge whose requests all wait. It sends one frame per ticket, as an edge does after a shard has returned."""

    def __init__(self, number: int, tickets: int, address: str, on_lease: Callable[[], None]) -> None:
        self._tickets = [_ticket(number, each) for each in range(tickets)]
        self._on_lease = on_lease
        self.queued = self.leased = self.rejected = 0
        self._channel = channel(address)
        self._link: Any = Link(
            f"e{number}",
            lambda: QueueServiceStub(self._channel).Submit(),
            SubmitRequest,
            hello_of("edge", f"e{number}"),
            on_frame=self._on_frame,
            on_up=lambda _: self._send_tickets(),
            capacity=2 * tickets,
            is_quiet=True,
        )

    async def run(self) -> None:
        await self._link.run()

    def _send_tickets(self) -> None:
        for ticket in self._tickets:
            self._link.send(SubmitRequest(enqueue=Enqueue(tickets=[ticket])))

    def _on_frame(self, frame: Any) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "queued":
            self.queued += 1
        elif kind == "shed":
            self.rejected += 1
        elif kind == "leased":
            self.leased += 1
            self._on_lease()


def _ticket(edge: int, number: int) -> Ticket:
    return Ticket(
        ticket_id=f"{edge:016x}{number:016x}",
        tenant_id=f"tenant {number % TENANTS}",
        priority=PRIORITY_STANDARD,
        weight=1.0,
        model=MODEL,
        prompt_tokens=PROMPT_TOKENS,
        max_output_tokens=MAX_OUTPUT_TOKENS,
        attempt=1,
        age_nanos=round(1e9 * WAITED_S),
        readmitted=True,
    )


async def run_edges(first: int, edges: int, tickets: int, address: str) -> None:
    def write_figures() -> None:
        queued, leased = sum(each.queued for each in waiting), sum(each.leased for each in waiting)
        print(queued, leased, sum(each.rejected for each in waiting), flush=True)

    def on_lease() -> None:
        if sum(each.leased for each in waiting) == 1:
            write_figures()

    waiting = [WaitingEdge(number, tickets, address, on_lease) for number in range(first, first + edges)]
    freeze_gc()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    async with asyncio.TaskGroup() as group:
        for each in waiting:
            group.create_task(each.run())
        while True:
            await asyncio.sleep(1 / FIGURES_PER_S)
            write_figures()


if __name__ == "__main__":
    first_edge, edge_count, ticket_count = map(int, sys.argv[1:4])
    run(lambda: run_edges(first_edge, edge_count, ticket_count, sys.argv[4]))
