"""Sends the cases of a corpus, a few at a time and at a bounded rate, and sums up what was accepted."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.proofs.hostile.attacks.attack import Pace
from penstock.proofs.hostile.corpus.case import CaseOutcome, HostileCase

CONCURRENCY = 6
CASES_PER_S = 60
NAMED = 40  # labels that a report names


@dataclass(slots=True, kw_only=True)
class CorpusReport:
    """The outcome of a corpus: counts by group, and the labels of those that should not be."""

    cases: int = 0
    accepted: list[str] = field(default_factory=list)
    internal_errors: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # the case itself failed, so that it proves nothing
    groups: dict[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0  # s of the attacker
    took_s: float = 0.0

    def record(self, case: HostileCase, outcome: CaseOutcome) -> None:
        self.cases += 1
        self.groups[case.group] = self.groups.get(case.group, 0) + 1
        label = f"{case.label} ({outcome.answer})"
        if outcome.is_accepted:
            self.accepted.append(label)
        if outcome.is_internal_error:
            self.internal_errors.append(label)
        if outcome.is_held:
            self.held.append(label)

    def accepted_by_group(self) -> Counter[str]:
        return Counter(label.partition(",")[0] for label in self.accepted)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def run_cases(cases: Iterable[HostileCase]) -> CorpusReport:
    report, pace, waiting = CorpusReport(), Pace(CASES_PER_S), iter(cases)
    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(_run_next(waiting, report, pace))
    return report


async def _run_next(waiting: Iterator[HostileCase], report: CorpusReport, pace: Pace) -> None:
    for case in waiting:
        await pace.wait()
        try:
            report.record(case, await case.send())
        except Exception as error:  # noqa: BLE001  # a case that cannot run must not look like a refusal
            report.failed.append(f"{case.label}: {error!r}")
