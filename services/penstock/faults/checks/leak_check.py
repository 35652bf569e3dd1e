"""Checks of the processes at rest: missing processes, open calls and crashes."""

from collections.abc import Iterator, Mapping

from penstock.faults.checks.checker import Violation
from penstock.faults.world.tiers import Tiers


def missing_processes(tiers: Tiers, faults_end_at: float) -> Iterator[Violation]:
    """Yield the processes that do not serve; before `faults_end_at`, in s, all of them may still be down."""
    for process in tiers.processes.values():
        is_serving = process.is_up and (not process.address or process.address in tiers.network.listeners)
        if not is_serving or tiers.network.world.now < faults_end_at:
            yield Violation("absent", f"{process.name} has not recovered")


def process_figures(tiers: Tiers) -> dict[str, tuple[str, Mapping[str, float]]]:
    """Return tier and figures of each serving process."""
    figures: dict[str, tuple[str, Mapping[str, float]]] = {}
    for process in tiers.processes.values():
        server = tiers.network.listeners.get(process.address)
        if process.loop and server:
            figures[process.name] = process.tier, server.figures()
    return figures


def leaked_calls(tiers: Tiers) -> Iterator[Violation]:
    """Yield the calls that have ended for their clients and not for their server."""
    for process in tiers.of("edge"):
        if server := tiers.network.listeners.get(process.address):
            for method in server.active_methods:
                if method.startswith("penstock.v1.Inference/"):
                    yield Violation("leak", f"{process.name} still serves {method}")


def process_crashes(tiers: Tiers) -> Iterator[Violation]:
    """Yield the uncaught exceptions of all processes."""
    for process in tiers.processes.values():
        for crash in process.crashes:
            yield Violation("crash", f"{process.name}: {crash!r}")
        for loop in (*process.past_loops, *([process.loop] if process.loop else ())):
            for failure in loop.failures:
                yield Violation("crash", f"{loop.name}: {failure.get('exception') or failure['message']!r}")
