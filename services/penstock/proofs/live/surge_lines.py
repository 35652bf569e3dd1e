"""What came of a surge's loads, as lines of its card. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.bench.history import History
from penstock.proofs.card import Line, at_most, exactly, percentile, told
from penstock.proofs.live.refusal_floor import Floor
from penstock.proofs.live.surge_cost import US, Spent, between, of_one_let_in, of_one_refused

LAGGING = 1.0  # s; clients that are this late did not offer what they were to
LOAD, FLOOD = 3.0, 8.0  # times what FIFO serves; the second shows what more refusals cost
JUDGED = "session"
WITHIN = 10.0  # %
ANSWER = 0.010  # s, P99
COST = 300.0  # us of CPU over all tiers


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What came of one load."""

    figures: Mapping[str, Any]
    histories: Sequence[History]
    tokens: int  # asked for by those that were good
    cpu: Mapping[str, float]  # s, by tier
    by_edges: float = 0.0  # refusals that edges decided
    lag: float = 0.0  # s by which the last request was asked late, as the clients were busy

    @property
    def refused(self) -> list[float]:
        """Return the s until each refusal at the door."""
        return [each.ended - each.started for each in self._overloaded if not each.prompt_tokens]

    @property
    def spent(self) -> Spent:
        refused = len(self.refused)
        return Spent(refused, len(self.histories) - refused, self.cpu)

    @property
    def given_up(self) -> int:
        """Count those that were let in, and refused when their time was over."""
        return sum(bool(each.prompt_tokens) for each in self._overloaded)

    @property
    def _overloaded(self) -> list[History]:
        return [each for each in self.histories if each.outcome == "OVERLOADED"]


def void_because(real: Offered, flood: Offered) -> str:
    """Why the run proves nothing; empty when it does."""
    if not real.refused:
        return "nobody was refused"
    lag = max(real.lag, flood.lag)
    return f"the clients asked {lag:.1f} s too late: this host is busy" if lag > LAGGING else ""


def goodput_lines(real: Offered, simulated: Mapping[str, Any]) -> list[Line]:
    seconds = real.figures["wall_s"]
    pairs = {
        "requests": (real.figures["goodput_requests_per_s"], simulated["goodput_requests_per_s"]),
        "weighted tokens": (real.tokens / seconds, simulated["goodput_weighted_tokens_per_s"]),
    }
    lines = []
    for name, (measured, predicted) in pairs.items():
        lines += [
            told(f"goodput in {name} at {LOAD:g}x", measured, "/s"),
            told(f"goodput in {name} as simulated", predicted, "/s"),
            at_most(f"goodput in {name} off the simulated", abs(100 * measured / predicted - 100), WITHIN, "%"),
        ]
    firsts = [first for each in real.histories if (first := each.ttft) is not None]
    return [
        *lines,
        told("P99 to the first token", percentile(firsts, 0.99), "s"),
        told("P99 to the first token as simulated", simulated["ttft_s"]["p99"], "s"),
        exactly("requests that failed otherwise than by a refusal", real.figures["failures"], 0),
    ]


def refusal_lines(real: Offered, flood: Offered) -> list[Line]:
    return [
        told(f"refused at {LOAD:g}x", len(real.refused)),
        told(f"refused at {FLOOD:g}x", len(flood.refused)),
        told(f"failed otherwise at {FLOOD:g}x", flood.figures["failures"]),
        told(f"let in at {LOAD:g}x and refused later", real.given_up),
        exactly("refusals without a Retry-After", real.figures["shed_without_retry_after"], 0),
    ]


def alone_lines(load: float, real: Offered, simulated: Mapping[str, Any]) -> list[Line]:
    """How many the edge refuses without asking the queue, which is what makes them cheap."""
    share = 100 * real.by_edges / max(1, len(real.refused))
    return [
        told(f"refused by the edge alone at {load:g}x", share, "%"),
        told(f"refused by the edge alone at {load:g}x as simulated", 100 * simulated["refused_by_edges_share"], "%"),
    ]


def let_in_lines(few: Offered, many: Offered, loads: Mapping[float, Offered]) -> list[Line]:
    """What is taken out of the cost of refusals, and how many of those there are."""
    cost = of_one_let_in(few.spent, many.spent)
    return [
        told("CPU of a request let in, whatever its tokens", US * sum(cost.values()), "us"),
        *(told(f"let in at {load:g}x", each.spent.let_in) for load, each in loads.items()),
    ]


def drift_line(first: Offered, second: Offered) -> Line:
    return told(f"CPU at {LOAD:g}x the second time", 100 * second.spent.total / first.spent.total - 100, "% more")


def cost_lines(
    way: str, real: Offered, flood: Offered, floor: Floor, *, again: Offered | None = None, let_in: Mapping[str, float]
) -> list[Line]:
    """What a refusal takes of time and CPU, and what it would take if nothing had to be decided.

    `again`: the lower load once more, after the flood. Where the clients could not keep up, too few were refused to
    tell: their lag is told alone.
    """
    if way != JUDGED and max(real.lag, flood.lag) > LAGGING:
        return [told(f"{way}: clients could not ask as often, and came late by", max(real.lag, flood.lag), "s")]
    less = between(real.spent, again.spent) if again else real.spent
    costs = of_one_refused(less, flood.spent, let_in)
    gross = sum(of_one_refused(less, flood.spent, {}).values())
    total, last = sum(costs.values()), percentile(real.refused, 0.99)
    is_judged = way == JUDGED
    late, spent = f"{way}: P99 until a refusal", f"{way}: CPU of a refusal, over all tiers"
    return [
        told(f"{way}: P50 until a refusal", percentile(real.refused, 0.5), "s"),
        at_most(late, last, ANSWER, "s") if is_judged else told(late, last, "s"),
        told(f"{way}: P99 until an empty one is", percentile(floor.waits, 0.99), "s"),
        *(told(f"{way}: CPU of a refusal, {tier}", cost, "us") for tier, cost in costs.items()),
        at_most(spent, total, COST, "us") if is_judged else told(spent, total, "us"),
        told(f"{way}: CPU of a refusal with what was let in beside", gross, "us"),
        told(f"{way}: CPU of an empty one", US * floor.cpu, "us"),
    ]
