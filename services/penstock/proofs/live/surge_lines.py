"""What came of a surge's loads, as lines of its card. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.bench.transcript import Transcript
from penstock.proofs.card import CardLine, at_most, exactly, percentile, reported
from penstock.proofs.live.rejection_floor import RejectionFloor

US_PER_S = 1e6  # in a second


@dataclass(frozen=True, slots=True)
class LoadCost:
    """What tiers did in one load, and their CPU time for it, in s."""

    rejected: float
    admitted: float
    cpu_s: Mapping[str, float]

    @property
    def total_cpu_s(self) -> float:
        return sum(self.cpu_s.values())


def mean_cost(one: LoadCost, other: LoadCost) -> LoadCost:
    """Return what would have been spent between two loads, while the machine's pace drifts."""
    cpu = {tier: (one.cpu_s[tier] + other.cpu_s[tier]) / 2 for tier in one.cpu_s}
    return LoadCost((one.rejected + other.rejected) / 2, (one.admitted + other.admitted) / 2, cpu)


def cpu_s_per_admitted(few: LoadCost, many: LoadCost) -> dict[str, float]:
    """Return the s of CPU by tier of one more request let in, where `many` have as many tokens together as `few`."""
    more = max(1.0, many.admitted - few.admitted)
    return {tier: (spent - few.cpu_s[tier]) / more for tier, spent in many.cpu_s.items()}


def cpu_us_per_rejected(less: LoadCost, more: LoadCost, cpu_s_per_admission: Mapping[str, float]) -> dict[str, float]:
    """Return the us of CPU by tier of one more refusal; `let_in` as by `of_one_let_in`, empty: nothing is taken out."""
    refused, others = max(1.0, more.rejected - less.rejected), more.admitted - less.admitted
    return {
        tier: US_PER_S * (spent - less.cpu_s[tier] - others * cpu_s_per_admission.get(tier, 0.0)) / refused
        for tier, spent in more.cpu_s.items()
    }


MAX_CLIENT_LAG_S = 1.0  # s; clients that are this late did not offer what they were to
OVERLOAD, HEAVY_OVERLOAD = 3.0, 8.0  # times what FIFO serves; the second shows what more refusals cost
JUDGED_DRIVER = "session"
MAX_DEVIATION_PERCENT = 10.0  # %
MAX_REJECTION_LATENCY_S = 0.010  # s, P99
MAX_REJECTION_CPU_US = 300.0  # us of CPU over all tiers


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What came of one load."""

    figures: Mapping[str, Any]
    histories: Sequence[Transcript]
    good_tokens: int  # asked for by those that were good
    cpu_s: Mapping[str, float]  # s, by tier
    rejected_by_edges: float = 0.0  # refusals that edges decided
    client_lag_s: float = 0.0  # s by which the last request was asked late, as the clients were busy

    @property
    def rejection_latencies(self) -> list[float]:
        """Return the s until each refusal at the door."""
        return [each.ended_at - each.started_at for each in self._overloaded if not each.prompt_tokens]

    @property
    def cost(self) -> LoadCost:
        refused = len(self.rejection_latencies)
        return LoadCost(refused, len(self.histories) - refused, self.cpu_s)

    @property
    def rejected_after_admission(self) -> int:
        """Count those that were let in, and refused when their time was over."""
        return sum(bool(each.prompt_tokens) for each in self._overloaded)

    @property
    def _overloaded(self) -> list[Transcript]:
        return [each for each in self.histories if each.outcome == "OVERLOADED"]


def surge_void_reason(real: LoadResult, heavy: LoadResult) -> str:
    """Why the run proves nothing; empty when it does."""
    if not real.rejection_latencies:
        return "nobody was refused"
    lag = max(real.client_lag_s, heavy.client_lag_s)
    return f"the clients asked {lag:.1f} s too late: this host is busy" if lag > MAX_CLIENT_LAG_S else ""


def goodput_lines(observed: LoadResult, simulated: Mapping[str, Any]) -> list[CardLine]:
    seconds = observed.figures["wall_s"]
    pairs = {
        "requests": (observed.figures["goodput_requests_per_s"], simulated["goodput_requests_per_s"]),
        "weighted tokens": (observed.good_tokens / seconds, simulated["goodput_weighted_tokens_per_s"]),
    }
    lines = []
    for name, (measured, predicted) in pairs.items():
        lines += [
            reported(f"goodput in {name} at {OVERLOAD:g}x", measured, "/s"),
            reported(f"goodput in {name} as simulated", predicted, "/s"),
            at_most(
                f"goodput in {name} off the simulated",
                abs(100 * measured / predicted - 100),
                MAX_DEVIATION_PERCENT,
                "%",
            ),
        ]
    firsts = [first for each in observed.histories if (first := each.ttft) is not None]
    return [
        *lines,
        reported("P99 to the first token", percentile(firsts, 0.99), "s"),
        reported("P99 to the first token as simulated", simulated["ttft_s"]["p99"], "s"),
        exactly("requests that failed otherwise than by a refusal", observed.figures["failures"], 0),
    ]


def rejection_lines(real: LoadResult, heavy: LoadResult) -> list[CardLine]:
    return [
        reported(f"refused at {OVERLOAD:g}x", len(real.rejection_latencies)),
        reported(f"refused at {HEAVY_OVERLOAD:g}x", len(heavy.rejection_latencies)),
        reported(f"failed otherwise at {HEAVY_OVERLOAD:g}x", heavy.figures["failures"]),
        reported(f"let in at {OVERLOAD:g}x and refused later", real.rejected_after_admission),
        exactly("refusals without a Retry-After", real.figures["shed_without_retry_after"], 0),
    ]


def edge_rejection_lines(load: float, real: LoadResult, simulated: Mapping[str, Any]) -> list[CardLine]:
    """How many the edge refuses without asking the queue, which is what makes them cheap."""
    share = 100 * real.rejected_by_edges / max(1, len(real.rejection_latencies))
    return [
        reported(f"refused by the edge alone at {load:g}x", share, "%"),
        reported(
            f"refused by the edge alone at {load:g}x as simulated", 100 * simulated["rejected_by_edges_share"], "%"
        ),
    ]


def admission_cost_lines(few: LoadResult, many: LoadResult, loads: Mapping[float, LoadResult]) -> list[CardLine]:
    """What is taken out of the cost of refusals, and how many of those there are."""
    cost = cpu_s_per_admitted(few.cost, many.cost)
    return [
        reported("CPU of a request let in, whatever its tokens", US_PER_S * sum(cost.values()), "us"),
        *(reported(f"let in at {load:g}x", each.cost.admitted) for load, each in loads.items()),
    ]


def drift_line(before: LoadResult, after: LoadResult) -> CardLine:
    return reported(
        f"CPU at {OVERLOAD:g}x the second time", 100 * after.cost.total_cpu_s / before.cost.total_cpu_s - 100, "% more"
    )


def rejection_cost_lines(
    driver: str,
    real: LoadResult,
    heavy: LoadResult,
    floor: RejectionFloor,
    *,
    repeated: LoadResult | None = None,
    cpu_s_per_admission: Mapping[str, float],
) -> list[CardLine]:
    """What a refusal takes of time and CPU, and what it would take if nothing had to be decided.

    `again`: the lower load once more, after the flood. Where the clients could not keep up, too few were refused to
    tell: their lag is told alone.
    """
    if driver != JUDGED_DRIVER and max(real.client_lag_s, heavy.client_lag_s) > MAX_CLIENT_LAG_S:
        return [
            reported(
                f"{driver}: clients could not ask as often, and came late by",
                max(real.client_lag_s, heavy.client_lag_s),
                "s",
            )
        ]
    less = mean_cost(real.cost, repeated.cost) if repeated else real.cost
    costs = cpu_us_per_rejected(less, heavy.cost, cpu_s_per_admission)
    gross = sum(cpu_us_per_rejected(less, heavy.cost, {}).values())
    total, last = sum(costs.values()), percentile(real.rejection_latencies, 0.99)
    is_judged = driver == JUDGED_DRIVER
    late, spent = f"{driver}: P99 until a refusal", f"{driver}: CPU of a refusal, over all tiers"
    return [
        reported(f"{driver}: P50 until a refusal", percentile(real.rejection_latencies, 0.5), "s"),
        at_most(late, last, MAX_REJECTION_LATENCY_S, "s") if is_judged else reported(late, last, "s"),
        reported(f"{driver}: P99 until an empty one is", percentile(floor.latencies_s, 0.99), "s"),
        *(reported(f"{driver}: CPU of a refusal, {tier}", cost, "us") for tier, cost in costs.items()),
        at_most(spent, total, MAX_REJECTION_CPU_US, "us") if is_judged else reported(spent, total, "us"),
        reported(f"{driver}: CPU of a refusal with what was let in beside", gross, "us"),
        reported(f"{driver}: CPU of an empty one", US_PER_S * floor.cpu_s, "us"),
    ]
