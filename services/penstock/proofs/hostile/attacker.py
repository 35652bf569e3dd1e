"""The process of the attacker: runs attacks and corpora on command, so that its CPU time is not the load's.

The messages on standard input and output are lines of JSON: first the target; then for each attack or corpus an
`AttackOrder`, which the process answers with a report. It gives way to the mesh on the CPU, as an attacker has a
machine of its own.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import uvloop

from penstock.chassis.garbage import freeze_gc
from penstock.proofs.hostile.attacks import ATTACKS
from penstock.proofs.hostile.attacks.attack import AttackReport, AttackRun
from penstock.proofs.hostile.corpus import CORPORA, INSIDERS
from penstock.proofs.hostile.corpus.runner import CorpusReport, run_cases
from penstock.proofs.hostile.ports import PortKind
from penstock.proofs.hostile.target import HostileTarget
from penstock.proofs.testbed.clients.line_process import LineProcess, open_line_process, read_message, write_message

NICENESS = 5
GRACE_S = 15.0  # s beyond the time of an attack after which it is ended
CORPUS_TIMEOUT_S = 300.0  # s


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackOrder:
    name: str
    port: str = ""  # kind of the attacked port; empty: a corpus, which has ports of its own
    seconds: float = 0.0
    count: int = 0


async def carry_out(order: AttackOrder, target: HostileTarget) -> AttackReport | CorpusReport:
    """Run one attack or corpus, and report what it did and got, with the attacker's own CPU time."""
    cpu_before, began_at = time.process_time(), time.monotonic()
    report = await (_attack(order, target) if order.port else _run_corpus(order, target))
    report.cpu_s, report.took_s = time.process_time() - cpu_before, time.monotonic() - began_at
    return report


async def _attack(order: AttackOrder, target: HostileTarget) -> AttackReport:
    kind = PortKind(order.port)
    run = AttackRun(
        port=target.ports_of(kind)[0],
        api_key=target.api_key,
        model=target.model,
        seconds=order.seconds,
        count=order.count,
        ports={each.kind: each for each in target.ports},
    )
    try:
        async with asyncio.timeout(order.seconds + GRACE_S):
            await ATTACKS[order.name].run(run)
    except OSError as error:  # the mesh refuses the attacker altogether
        run.report.cut += 1
        run.report.findings["connections refused"] = 1
        if isinstance(error, TimeoutError):
            run.report.error = f"the attack did not end within {order.seconds + GRACE_S:.0f} s"
    except Exception as error:  # noqa: BLE001  # an attack that cannot run must not look like one that is survived
        run.report.error = repr(error)
    return run.report


async def _run_corpus(order: AttackOrder, target: HostileTarget) -> CorpusReport:
    async with asyncio.timeout(CORPUS_TIMEOUT_S):
        return await run_cases((CORPORA | INSIDERS)[order.name](target))


async def serve() -> None:
    """Carry out the orders on standard input, until its end."""
    target = HostileTarget.from_json(await read_message())
    while message := await read_message():
        report = await carry_out(AttackOrder(**message), target)
        write_message(report.to_json())


class Attacker:
    """The attacker's process, as its parent sees it."""

    def __init__(self, process: LineProcess) -> None:
        self._process = process

    async def attack(self, order: AttackOrder) -> AttackReport:
        return AttackReport(**await self._request(order))

    async def run_corpus(self, name: str) -> CorpusReport:
        return CorpusReport(**await self._request(AttackOrder(name=name)))

    async def _request(self, order: AttackOrder) -> Any:
        await self._process.send(asdict(order))
        return await self._process.receive()


@asynccontextmanager
async def open_attacker(target: HostileTarget) -> AsyncIterator[Attacker]:
    """Run the attacker's process for the duration of the block."""
    async with open_line_process(__name__) as process:
        await process.send(target.to_json())
        yield Attacker(process)


if __name__ == "__main__":
    os.nice(NICENESS)
    freeze_gc()
    uvloop.run(serve())
