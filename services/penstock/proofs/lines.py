"""Lines that several proofs share. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from penstock.proofs.card import CardLine, at_most, exactly, percentile, reported
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.checks.ledger import ChargeFindings
from penstock.proofs.checks.transcript import TokenTranscript, TranscriptFindings

INTERRUPTION_FACTOR = 1.5  # times the longest pause that 99 % of calm answers had; what pauses longer was interrupted
MAX_ADDED_GAP_S = 1.0  # s, beyond doing the prefill again


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
        exactly("tokens charged to nobody's request", charges.unattributed_tokens, 0),
    ]


def pause_lines(
    transcripts: Sequence[TokenTranscript],
    baseline: Sequence[TokenTranscript],
    faults: Sequence[InjectedFault],
    *,
    detection_s: float = 0.0,
) -> list[CardLine]:
    """Pauses of requests that were under way at a fault, beyond those that calm answers have.

    `unnoticed`: s for which such a fault may go unnoticed; a process that died shows at once.
    """
    pauses = [
        history.longest_pause
        for history in transcripts
        if any(fault.overlaps(history.started_at, history.ended_at) for fault in faults)
    ]
    usual = percentile([history.longest_pause for history in baseline], 0.99)
    prefill = percentile([history.ttft or 0.0 for history in baseline], 0.5)
    bound = round(detection_s + MAX_ADDED_GAP_S + prefill, 3)
    added = [pause - usual for pause in pauses if pause > INTERRUPTION_FACTOR * usual]
    return [
        reported("requests under way at a fault", len(pauses)),
        reported("of them interrupted", len(added)),
        reported("P50 gap added to the interrupted", percentile(added, 0.5), "s"),
        at_most("P99 gap added to the interrupted", percentile(added, 0.99), bound, "s"),
        reported("longest gap added", max(added, default=0.0), "s"),
    ]


def tier_pause_lines(
    transcripts: Sequence[TokenTranscript], baseline: Sequence[TokenTranscript], faults: Sequence[InjectedFault]
) -> list[CardLine]:
    """The longest pauses by the tier whose process was away as they lasted, where they interrupted."""
    usual = percentile([history.longest_pause for history in baseline], 0.99)
    added: dict[str, list[float]] = {}
    for began, length in (history.longest_silence for history in transcripts):
        for fault in faults if length > INTERRUPTION_FACTOR * usual else ():
            if fault.overlaps(began, began + length):
                added.setdefault(tier_of(fault), []).append(length - usual)
    return [
        reported(f"P99 gap added to those interrupted as {tier} died", percentile(gaps, 0.99), "s")
        for tier, gaps in sorted(added.items())
    ]


def tier_of(fault: InjectedFault) -> str:
    return fault.name.partition("-")[0]


def residue_lines(residue: Mapping[str, float]) -> list[CardLine]:
    return [exactly("figures not back at zero", len(residue), 0)]


def fault_summary(faults: Sequence[InjectedFault]) -> str:
    """How many of which fault hit which tier, and how long it took to serve again."""
    hit = Counter(map(tier_of, faults))
    away = percentile([fault.recovered_at - fault.injected_at for fault in faults], 0.5)
    counts = ", ".join(f"{tier} {count}" for tier, count in sorted(hit.items()))
    return f"{len(faults)} faults: {counts}; median time until the process served again {away:.1f} s"
