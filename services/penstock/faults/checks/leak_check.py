"""What a world's processes still have, do or failed in once nothing is asked of them any more."""

from collections.abc import Iterator, Mapping

from penstock.faults.checks.checker import Violation
from penstock.faults.world.tiers import Tiers


def missing_processes(tiers: Tiers, faults_end_at: float) -> Iterator[Violation]:
    """Processes that are not there, or may yet not be: `until` is when the last fault is over, in s."""
    for process in tiers.processes.values():
        is_there = process.is_up and (not process.address or process.address in tiers.network.listeners)
        if not is_there or tiers.network.world.now < faults_end_at:
            yield Violation("absent", f"{process.name} has not come back")


def process_figures(tiers: Tiers) -> dict[str, tuple[str, Mapping[str, float]]]:
    """Tier and figures of each process that is there."""
    found: dict[str, tuple[str, Mapping[str, float]]] = {}
    for process in tiers.processes.values():
        server = tiers.network.listeners.get(process.address)
        if process.loop and server:
            found[process.name] = process.tier, server.figures()
    return found


def leaked_calls(tiers: Tiers) -> Iterator[Violation]:
    """Calls of clients that are over for their clients and not for their server."""
    for process in tiers.of("edge"):
        if server := tiers.network.listeners.get(process.address):
            for method in server.active_methods:
                if method.startswith("penstock.v1.Inference/"):
                    yield Violation("leak", f"{process.name} still serves {method}")


def process_crashes(tiers: Tiers) -> Iterator[Violation]:
    for process in tiers.processes.values():
        for crash in process.crashes:
            yield Violation("crash", f"{process.name}: {crash!r}")
        for loop in (*process.past_loops, *([process.loop] if process.loop else ())):
            for failure in loop.failures:
                yield Violation("crash", f"{loop.name}: {failure.get('exception') or failure['message']!r}")
