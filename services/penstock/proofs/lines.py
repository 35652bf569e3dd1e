"""Lines that several proofs share. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from penstock.proofs.card import Line, at_most, exactly, percentile, told
from penstock.proofs.checks.injected_faults import Fault
from penstock.proofs.checks.ledger import ChargeFindings
from penstock.proofs.checks.transcript import Findings, History

INTERRUPTION = 1.5  # times the longest pause that 99 % of calm answers had; what pauses longer was interrupted
ADDED_GAP = 1.0  # s, beyond doing the prefill again


def finding_lines(findings: Findings) -> list[Line]:
    return [
        told("requests", findings.requests),
        exactly("client-visible failures", findings.failures, 0),
        exactly("tokens missing", findings.missing, 0),
        exactly("tokens doubled", findings.doubled, 0),
        exactly("tokens reordered", findings.reordered, 0),
        exactly("tokens changed", findings.changed, 0),
        exactly("transcripts identical", 100 * findings.identical / max(1, findings.requests), 100, "%"),
    ]


def charge_lines(charges: ChargeFindings) -> list[Line]:
    return [
        told("output tokens seen", charges.seen),
        told("output tokens charged", charges.charged),
        exactly("tokens charged beyond those seen", charges.overcharged, 0),
        exactly("tokens seen and not charged", charges.undercharged, 0),
        exactly("prompts charged twice", charges.prompts_again, 0),
        exactly("prompts not charged", charges.prompts_free, 0),
        exactly("tickets charged twice", charges.doubled, 0),
        exactly("tokens charged to nobody's request", charges.strays, 0),
    ]


def pause_lines(
    histories: Sequence[History], calm: Sequence[History], faults: Sequence[Fault], *, unnoticed: float = 0.0
) -> list[Line]:
    """Pauses of requests that were under way at a fault, beyond those that calm answers have.

    `unnoticed`: s for which such a fault may go unnoticed; a process that died shows at once.
    """
    pauses = [
        history.longest_pause
        for history in histories
        if any(fault.covers(history.started, history.ended) for fault in faults)
    ]
    usual = percentile([history.longest_pause for history in calm], 0.99)
    prefill = percentile([history.ttft or 0.0 for history in calm], 0.5)
    bound = round(unnoticed + ADDED_GAP + prefill, 3)
    added = [pause - usual for pause in pauses if pause > INTERRUPTION * usual]
    return [
        told("requests under way at a fault", len(pauses)),
        told("of them interrupted", len(added)),
        told("P50 gap added to the interrupted", percentile(added, 0.5), "s"),
        at_most("P99 gap added to the interrupted", percentile(added, 0.99), bound, "s"),
        told("longest gap added", max(added, default=0.0), "s"),
    ]


def residue_lines(residue: Mapping[str, float]) -> list[Line]:
    return [exactly("figures not back at zero", len(residue), 0)]


def tally(faults: Sequence[Fault]) -> str:
    """How many of which fault hit which tier, and how long it took to serve again."""
    hit = Counter(fault.name.partition("-")[0] for fault in faults)
    away = percentile([fault.back_at - fault.at for fault in faults], 0.5)
    counts = ", ".join(f"{tier} {count}" for tier, count in sorted(hit.items()))
    return f"{len(faults)} faults: {counts}; median time until the process served again {away:.1f} s"
