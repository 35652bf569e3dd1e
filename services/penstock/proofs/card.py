"""Lines of a scorecard: what was measured, what was wanted, whether it was met. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

MET, MISSED, VOID = 0, 1, 3  # exit codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    figure: str
    measured: float
    goal: str  # as people read it; empty: told, not judged
    is_met: bool = True
    unit: str = ""


def at_most(figure: str, measured: float, bound: float, unit: str = "") -> Line:
    return Line(figure=figure, measured=measured, goal=f"<= {bound:g}", is_met=measured <= bound, unit=unit)


def at_least(figure: str, measured: float, bound: float, unit: str = "") -> Line:
    return Line(figure=figure, measured=measured, goal=f">= {bound:g}", is_met=measured >= bound, unit=unit)


def exactly(figure: str, measured: float, wanted: float, unit: str = "") -> Line:
    return Line(figure=figure, measured=measured, goal=f"{wanted:g}", is_met=measured == wanted, unit=unit)


def told(figure: str, measured: float, unit: str = "") -> Line:
    return Line(figure=figure, measured=measured, goal="", unit=unit)


@dataclass(slots=True, kw_only=True)
class Card:
    """One proof's outcome."""

    proof: str
    lines: list[Line] = field(default_factory=list)
    void: str = ""  # why the run proves nothing
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        if self.void:
            return "void"
        return "pass" if all(line.is_met for line in self.lines) else "miss"

    def to_json(self) -> dict[str, Any]:
        lines = [asdict(line) for line in self.lines]
        return {"proof": self.proof, "verdict": self.verdict, "void": self.void, "lines": lines, "notes": self.notes}


def exit_code(cards: Sequence[Card]) -> int:
    """A miss weighs more than a void: it is a proof of the contrary."""
    verdicts = {card.verdict for card in cards}
    return MISSED if "miss" in verdicts else VOID if "void" in verdicts else MET


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank, as no value that was not measured is to be told; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
