"""The outcome of a proof: figures with their goals, a verdict, and the lines that several proofs share. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.bench.statistics import quantile
from penstock.bench.transcript import TokenTranscript, TranscriptFindings
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.checks.ledger import ChargeFindings

EXIT_MET, EXIT_MISSED, EXIT_VOID = 0, 1, 3  # exit codes


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLine:
    figure: str
    measured: float
    goal: str  # as text; empty: the figure is reported, not judged
    is_met: bool = True
    unit: str = ""


def at_most(figure: str, measured: float, bound: float, unit: str = "") -> CardLine:
    return CardLine(figure=figure, measured=measured, goal=f"<= {bound:g}", is_met=measured <= bound, unit=unit)


def at_least(figure: str, measured: float, bound: float, unit: str = "") -> CardLine:
    return CardLine(figure=figure, measured=measured, goal=f">= {bound:g}", is_met=measured >= bound, unit=unit)


def exactly(figure: str, measured: float, expected: float, unit: str = "") -> CardLine:
    return CardLine(figure=figure, measured=measured, goal=f"{expected:g}", is_met=measured == expected, unit=unit)


def reported(figure: str, measured: float, unit: str = "") -> CardLine:
    return CardLine(figure=figure, measured=measured, goal="", unit=unit)


@dataclass(slots=True, kw_only=True)
class ProofCard:
    """The outcome of one proof."""

    proof: str
    lines: list[CardLine] = field(default_factory=list)
    void_reason: str = ""  # the reason why the run proves nothing; empty: it is valid
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        if self.void_reason:
            return "void"
        return "pass" if all(line.is_met for line in self.lines) else "miss"

    def to_json(self) -> dict[str, Any]:
        return {
            "proof": self.proof,
            "verdict": self.verdict,
            "void": self.void_reason,
            "lines": [asdict(line) for line in self.lines],
            "notes": self.notes,
        }


def exit_code(cards: Sequence[ProofCard]) -> int:
    """A miss takes precedence over a void run, because it disproves a promise."""
    verdicts = {card.verdict for card in cards}
    return EXIT_MISSED if "miss" in verdicts else EXIT_VOID if "void" in verdicts else EXIT_MET


INTERRUPTION_FACTOR = 1.5  # times the P99 of the longest pauses without faults; a longer pause is an interruption
MAX_ADDED_GAP_S = 1.0  # s, beyond the time for another prefill


def finding_lines(findings: TranscriptFindings) -> list[CardLine]:
    return [
        reported("requests", findings.requests),
        exactly("client-visible failures", findings.failures, 0),
        exactly("tokens missing", findings.missing, 0),
        exactly("tokens doubled", findings.duplicated, 0),
        exactly("tokens reordered", findings.reordered, 0),
        exactly("tokens changed", findings.changed, 0),
        exactly("transcripts identical", 100 * findings.identical / max(1, findings.requests), 100, "%"),
    ]


def charge_lines(charges: ChargeFindings) -> list[CardLine]:
    return [
        reported("output tokens seen", charges.seen_tokens),
        reported("output tokens charged", charges.charged_tokens),
        exactly("tokens charged beyond those seen", charges.overcharged_tokens, 0),
        exactly("tokens seen and not charged", charges.undercharged_tokens, 0),
        exactly("prompts charged twice", charges.double_charged_prompts, 0),
        exactly("prompts not charged", charges.uncharged_prompts, 0),
        exactly("tickets charged twice", charges.double_charged_tickets, 0),
        exactly("tokens charged to no request", charges.unattributed_tokens, 0),
    ]


def pause_lines(
    transcripts: Sequence[TokenTranscript],
    baseline: Sequence[TokenTranscript],
    faults: Sequence[InjectedFault],
    *,
    detection_s: float = 0.0,
) -> list[CardLine]:
    """Pauses of requests that were active during a fault, beyond those of the baseline.

    `detection_s`: s within which such a fault is detected; 0 for the death of a process, which is seen at once.
    """
    pauses = [
        transcript.longest_pause[1]
        for transcript in transcripts
        if any(fault.overlaps(transcript.started_at, transcript.ended_at) for fault in faults)
    ]
    usual = _usual_pause(baseline)
    prefill = quantile([transcript.ttft or 0.0 for transcript in baseline], 0.5)
    bound = round(detection_s + MAX_ADDED_GAP_S + prefill, 3)
    added = [pause - usual for pause in pauses if pause > INTERRUPTION_FACTOR * usual]
    return [
        reported("requests active during a fault", len(pauses)),
        reported("of them interrupted", len(added)),
        reported("P50 gap added to the interrupted", quantile(added, 0.5), "s"),
        at_most("P99 gap added to the interrupted", quantile(added, 0.99), bound, "s"),
        reported("longest gap added", max(added, default=0.0), "s"),
    ]


def tier_pause_lines(
    transcripts: Sequence[TokenTranscript], baseline: Sequence[TokenTranscript], faults: Sequence[InjectedFault]
) -> list[CardLine]:
    """The interruptions by the tier of the process that was down during the pause."""
    usual = _usual_pause(baseline)
    added: dict[str, list[float]] = {}
    for started_at, length in (transcript.longest_pause for transcript in transcripts):
        for fault in faults if length > INTERRUPTION_FACTOR * usual else ():
            if fault.overlaps(started_at, started_at + length):
                added.setdefault(fault.tier, []).append(length - usual)
    return [
        reported(f"P99 gap added to requests interrupted by a death of {tier}", quantile(gaps, 0.99), "s")
        for tier, gaps in sorted(added.items())
    ]


def _usual_pause(baseline: Sequence[TokenTranscript]) -> float:
    return quantile([transcript.longest_pause[1] for transcript in baseline], 0.99)


def residue_lines(residue: Mapping[str, float]) -> list[CardLine]:
    return [exactly("figures not back at zero", len(residue), 0)]


def fault_summary(faults: Sequence[InjectedFault]) -> str:
    """Return the number of faults by tier, and the median time to recovery."""
    counts = Counter(fault.tier for fault in faults)
    downtime = quantile([fault.recovered_at - fault.injected_at for fault in faults], 0.5)
    tiers = ", ".join(f"{tier} {count}" for tier, count in sorted(counts.items()))
    return f"{len(faults)} faults: {tiers}; median time until the process served again {downtime:.1f} s"
