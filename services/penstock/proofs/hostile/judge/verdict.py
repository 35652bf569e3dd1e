"""The verdict over all attacks and corpora: lines with goals, and one note for each attack. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.proofs.card import CardLine, at_least, at_most, exactly, reported
from penstock.proofs.hostile.attacks.attack import AttackReport
from penstock.proofs.hostile.corpus.runner import CorpusReport
from penstock.proofs.hostile.judge.phase import MIN_GOODPUT_SHARE, PhaseFigures, ttft_bound
from penstock.proofs.hostile.judge.processes import MAX_GROWTH, MemoryUse

MIN_CASES = 300  # of all corpora
MIN_CALM_REQUESTS = 30
NAMED_CASES = 12  # of each corpus that a note names
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """One attack on one port, or one corpus, with what honest clients got beside it."""

    label: str
    report: AttackReport | CorpusReport
    figures: PhaseFigures | None  # None: no honest load ran beside it
    failures: Mapping[str, int] = field(default_factory=dict)  # of honest requests, by reason
    memory: MemoryUse
    mesh_cpu_share: float = 0.0  # CPU time of the mesh, of one core
    max_findings: Mapping[str, float] = field(default_factory=dict)
    lost: Sequence[str] = ()  # processes that ended
    is_repeated: bool = False  # another run decides about goodput and first tokens
    cpu_wait_share: float = 0.0  # of the runnable time of the mesh that it waited for a core, from 0 to 1

    @property
    def accepted(self) -> int:
        return len(self.report.accepted) if isinstance(self.report, CorpusReport) else self.report.accepted

    @property
    def exceeded_findings(self) -> list[str]:
        if isinstance(self.report, CorpusReport):
            return []
        found = self.report.findings
        return [name for name, limit in self.max_findings.items() if found.get(name, 0) > limit]

    @property
    def not_returned(self) -> list[str]:
        return self.memory.not_returned(self.memory.after)

    def goodput_share(self, calm: PhaseFigures) -> float:
        return self.figures.goodput / max(1e-9, calm.goodput) if self.figures else 1.0

    @property
    def has_harmed(self) -> bool:
        """Whether the attack gained or broke anything, which no other work on the machine explains."""
        failed = self.figures.failed if self.figures else 0
        return bool(failed or self.accepted or self.exceeded_findings or self.not_returned or self.lost)

    def is_slowed(self, calm: PhaseFigures) -> bool:
        """Whether goodput or first tokens miss their goals. Other work on the machine can have that effect as well."""
        if not self.figures:
            return False
        return self.goodput_share(calm) < MIN_GOODPUT_SHARE or self.figures.ttft_p99 > ttft_bound(calm)

    def is_met(self, calm: PhaseFigures) -> bool:
        return not (self.is_slowed(calm) or self.has_harmed)


def void_reason(calm: PhaseFigures, results: Sequence[AttackResult]) -> str:
    """Return why a run proves nothing; empty if it is valid."""
    if calm.requests < MIN_CALM_REQUESTS or calm.failed:
        return f"of {calm.requests} honest requests without an attack, {calm.failed} failed"
    for result in results:
        if isinstance(result.report, AttackReport) and result.report.error:
            return f"{result.label} could not run: {result.report.error}"
        if isinstance(result.report, CorpusReport) and result.report.failed:
            return f"{result.label} could not run: {result.report.failed[0]}"
    return ""


def verdict_lines(
    calm: PhaseFigures, results: Sequence[AttackResult], *, tracebacks: int, is_whole_corpus: bool
) -> Iterator[CardLine]:
    corpora = [each.report for each in results if isinstance(each.report, CorpusReport) and not each.is_repeated]
    attacks = [result for result in results if isinstance(result.report, AttackReport)]
    cases = sum(corpus.cases for corpus in corpora)
    yield at_least("cases of the corpus", cases, MIN_CASES) if is_whole_corpus else reported("cases", cases)
    yield exactly("cases accepted", sum(len(corpus.accepted) for corpus in corpora), 0)
    yield from _group_lines(corpora)
    yield exactly("cases answered with an internal error", sum(len(each.internal_errors) for each in corpora), 0)
    yield exactly("tracebacks in logs", tracebacks, 0)
    yield reported("cases without an answer until the attacker left", sum(len(each.held) for each in corpora))
    yield reported("attacks that last", sum(not each.is_repeated for each in attacks))
    yield exactly("successes of attacks", sum(result.accepted for result in attacks), 0)
    yield exactly("held connections and streams above their goals", sum(len(e.exceeded_findings) for e in attacks), 0)
    yield from _harm_lines(calm, [(result, result.figures) for result in results if result.figures])
    yield exactly("attacks after which memory stays above 110 %", sum(bool(each.not_returned) for each in results), 0)
    yield reported("largest growth during an attack", max(_growth_mib(each.memory) for each in results), "MiB")
    yield reported("longest time until memory was back", max(each.memory.returned_after_s for each in results), "s")
    yield exactly("processes lost", len({name for result in results for name in result.lost}), 0)
    yield reported("highest CPU share of the attacker", max(100 * _cpu_share(each.report) for each in results), "%")


def _group_lines(corpora: Sequence[CorpusReport]) -> Iterator[CardLine]:
    """Yield the accepted cases of each group."""
    for corpus in corpora:
        accepted = corpus.accepted_by_group()
        yield from (exactly(f"accepted: {group}", accepted[group], 0) for group in corpus.groups)


def _harm_lines(calm: PhaseFigures, beside: Sequence[tuple[AttackResult, PhaseFigures]]) -> Iterator[CardLine]:
    yield reported("calm goodput", calm.goodput, "tokens/s")
    yield reported("calm P99 TTFT", calm.ttft_p99, "s")
    if not beside:
        return
    yield reported("honest requests beside attacks", sum(figures.requests for _, figures in beside))
    yield exactly("of them failed", sum(figures.failed for _, figures in beside), 0)
    yield exactly("of them streams through Envoy", sum(figures.failed_streams for _, figures in beside), 0)
    decisive = [(result, figures) for result, figures in beside if not result.is_repeated]
    lowest = min(result.goodput_share(calm) for result, _ in decisive)
    yield at_least("lowest goodput beside an attack, of calm", 100 * lowest, 100 * MIN_GOODPUT_SHARE, "%")
    highest = max(figures.ttft_p99 for _, figures in decisive)
    yield at_most("highest P99 TTFT beside an attack", highest, round(ttft_bound(calm), 3), "s")
    yield reported("attacks that were repeated", len(beside) - len(decisive))
    yield reported("attacks that miss a goal", sum(not result.is_met(calm) for result, _ in decisive))


def _growth_mib(memory: MemoryUse) -> float:
    return memory.largest_growth[1] / MIB


def _cpu_share(report: AttackReport | CorpusReport) -> float:
    return report.cpu_s / max(1e-9, report.took_s)


def verdict_notes(calm: PhaseFigures, results: Sequence[AttackResult]) -> Iterator[str]:
    """Yield a line for each attack and corpus, and the accepted cases of each corpus."""
    for result in results:
        mark = "repeated" if result.is_repeated else "met" if result.is_met(calm) else "MISSED"
        yield f"{result.label}: {mark}; {'; '.join(_note_parts(calm, result))}"
        if isinstance(result.report, CorpusReport):
            for name, labels in (("accepted", result.report.accepted), ("internal", result.report.internal_errors)):
                yield from (f"  {name}: {label}" for label in labels[:NAMED_CASES])
                if len(labels) > NAMED_CASES:
                    yield f"  {name}: and {len(labels) - NAMED_CASES} more"


def _note_parts(calm: PhaseFigures, result: AttackResult) -> Iterator[str]:
    report, figures = result.report, result.figures
    if figures:
        reasons = ", ".join(f"{count} {reason}" for reason, count in result.failures.items())
        yield f"goodput {100 * result.goodput_share(calm):.0f} %, P99 TTFT {figures.ttft_p99:.3f} s"
        yield f"{figures.failed} of {figures.requests} failed" + (f" ({reasons})" if reasons else "")
    name, growth = result.memory.largest_growth
    returned = (
        f"{', '.join(result.not_returned)} stays above {100 + 100 * MAX_GROWTH:.0f} %"
        if result.not_returned
        else f"back after {result.memory.returned_after_s:.1f} s"
    )
    yield f"memory +{growth / MIB:.0f} MiB ({name}), {returned}"
    if isinstance(report, CorpusReport):
        yield f"{len(report.accepted)} of {report.cases} accepted, {len(report.held)} held"
    else:
        yield f"{report.accepted} accepted, {report.connections} connections, {report.cut} cut"
        yield f"{report.sent:,} sent in {report.sent_bytes / MIB:.1f} MiB"
        yield from (f"{name}: {value:g}" for name, value in report.findings.items())
    yield f"CPU: mesh {100 * result.mesh_cpu_share:.0f} %, attacker {100 * _cpu_share(report):.0f} % of a core"
    yield f"the mesh waited for a core for {100 * result.cpu_wait_share:.0f} % of its runnable time"
    if result.lost:
        yield f"lost {', '.join(result.lost)}"
