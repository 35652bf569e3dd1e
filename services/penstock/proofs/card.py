"""The outcome of a proof: figures with their goals, and a verdict. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

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
