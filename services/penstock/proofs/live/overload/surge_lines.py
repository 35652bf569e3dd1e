"""Card lines of the surge proof, computed from the results of its loads. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.bench.statistics import quantile
from penstock.bench.transcript import Transcript
from penstock.proofs.card import CardLine, at_most, exactly, reported
from penstock.proofs.live.overload.rejection_floor import RejectionFloor

US_PER_S = 1e6
MAX_CLIENT_LAG_S = 1.0  # s; clients with more lag did not offer the planned load
OVERLOAD, HEAVY_OVERLOAD = 3.0, 8.0  # times the capacity of FIFO; the second shows the cost of more rejections
APIS = {"session": "session", "grpc": "call", "completions": "HTTP"}  # label by API
JUDGED_API = "session"
MAX_DEVIATION_PERCENT = 10.0  # %
MAX_REJECTION_LATENCY_S = 0.010  # s, P99
MAX_REJECTION_CPU_US = 300.0  # us of CPU over all tiers


@dataclass(frozen=True, slots=True)
class LoadCost:
    """The requests of one load, and the CPU time of each tier in s."""

    rejected: float
    admitted: float
    cpu_s: Mapping[str, float]

    @property
    def total_cpu_s(self) -> float:
        return sum(self.cpu_s.values())


def mean_cost(one: LoadCost, other: LoadCost) -> LoadCost:
    """Return the mean of a load before and after another one, which cancels a drift of the machine's speed."""
    cpu = {tier: (one.cpu_s[tier] + other.cpu_s[tier]) / 2 for tier in one.cpu_s}
    return LoadCost((one.rejected + other.rejected) / 2, (one.admitted + other.admitted) / 2, cpu)


def cpu_s_per_admitted(long_outputs: LoadCost, short_outputs: LoadCost) -> dict[str, float]:
    """Return the CPU s by tier of one more admitted request; both loads have as many tokens in total."""
    additional = max(1.0, short_outputs.admitted - long_outputs.admitted)
    return {tier: (used - long_outputs.cpu_s[tier]) / additional for tier, used in short_outputs.cpu_s.items()}


def cpu_us_per_rejected(less: LoadCost, more: LoadCost, cpu_s_per_admission: Mapping[str, float]) -> dict[str, float]:
    """Return the CPU us by tier of one more rejection.

    `cpu_s_per_admission`: as of `cpu_s_per_admitted`; if it is empty, admitted requests are not subtracted.
    """
    rejected, admitted = max(1.0, more.rejected - less.rejected), more.admitted - less.admitted
    return {
        tier: US_PER_S * (used - less.cpu_s[tier] - admitted * cpu_s_per_admission.get(tier, 0.0)) / rejected
        for tier, used in more.cpu_s.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The result of one load."""

    figures: Mapping[str, Any]
    transcripts: Sequence[Transcript]
    good_tokens: int  # weighted tokens of the requests that met the SLO
    cpu_s: Mapping[str, float]  # s, by tier
    rejected_by_edges: float = 0.0  # rejections that an edge decided without the queue
    client_lag_s: float = 0.0  # s by which the last request was sent late, because the clients were busy

    @property
    def rejection_latencies(self) -> list[float]:
        """Return the s until each rejection at admission."""
        return [each.ended_at - each.started_at for each in self._overloaded if not each.is_accepted]

    @property
    def cost(self) -> LoadCost:
        rejected = len(self.rejection_latencies)
        return LoadCost(rejected, len(self.transcripts) - rejected, self.cpu_s)

    @property
    def rejected_after_admission(self) -> int:
        """The number of requests that were admitted, and rejected when their deadline had passed."""
        return sum(each.is_accepted for each in self._overloaded)

    @property
    def _overloaded(self) -> list[Transcript]:
        return [each for each in self.transcripts if each.outcome == "OVERLOADED"]


def surge_void_reason(real: LoadResult, heavy: LoadResult) -> str:
    """Return the reason why the run proves nothing; empty if it is valid."""
    if not real.rejection_latencies:
        return "no request was rejected"
    lag = max(real.client_lag_s, heavy.client_lag_s)
    return (
        f"the clients sent requests {lag:.1f} s too late, because this host is busy" if lag > MAX_CLIENT_LAG_S else ""
    )


def goodput_lines(observed: LoadResult, simulated: Mapping[str, Any]) -> list[CardLine]:
    pairs = {
        "requests": (observed.figures["goodput_requests_per_s"], simulated["goodput_requests_per_s"]),
        "weighted tokens": (
            observed.good_tokens / observed.figures["wall_s"],
            simulated["goodput_weighted_tokens_per_s"],
        ),
    }
    lines = []
    for name, (measured, predicted) in pairs.items():
        deviation = abs(100 * measured / predicted - 100)
        lines += [
            reported(f"goodput in {name} at {OVERLOAD:g}x", measured, "/s"),
            reported(f"goodput in {name}, simulated", predicted, "/s"),
            at_most(f"goodput in {name}, deviation from the simulated", deviation, MAX_DEVIATION_PERCENT, "%"),
        ]
    ttfts = [ttft for each in observed.transcripts if (ttft := each.ttft) is not None]
    return [
        *lines,
        reported("P99 TTFT", quantile(ttfts, 0.99), "s"),
        reported("P99 TTFT, simulated", simulated["ttft_s"]["p99"], "s"),
        exactly("requests that failed otherwise than by a rejection", observed.figures["failures"], 0),
    ]


def rejection_lines(real: LoadResult, heavy: LoadResult) -> list[CardLine]:
    return [
        reported(f"rejected at {OVERLOAD:g}x", len(real.rejection_latencies)),
        reported(f"rejected at {HEAVY_OVERLOAD:g}x", len(heavy.rejection_latencies)),
        reported(f"failed otherwise at {HEAVY_OVERLOAD:g}x", heavy.figures["failures"]),
        reported(f"admitted at {OVERLOAD:g}x and rejected later", real.rejected_after_admission),
        exactly("rejections without a Retry-After", real.figures["shed_without_retry_after"], 0),
    ]


def edge_rejection_lines(load: float, real: LoadResult, simulated: Mapping[str, Any]) -> list[CardLine]:
    """The share of rejections that the edge decides without the queue, which makes them cheap."""
    share, label = 100 * real.rejected_by_edges / max(1, len(real.rejection_latencies)), f"at {load:g}x"
    return [
        reported(f"rejected by the edge alone {label}", share, "%"),
        reported(f"rejected by the edge alone {label}, simulated", 100 * simulated["rejected_by_edges_share"], "%"),
    ]


def admission_cost_lines(
    long_outputs: LoadResult, short_outputs: LoadResult, loads: Mapping[float, LoadResult]
) -> list[CardLine]:
    """The cost that is subtracted for each admitted request, and the number of admitted requests."""
    cost = cpu_s_per_admitted(long_outputs.cost, short_outputs.cost)
    return [
        reported("CPU of an admitted request without its tokens", US_PER_S * sum(cost.values()), "us"),
        *(reported(f"admitted at {load:g}x", each.cost.admitted) for load, each in loads.items()),
    ]


def drift_line(before: LoadResult, after: LoadResult) -> CardLine:
    drift = 100 * after.cost.total_cpu_s / before.cost.total_cpu_s - 100
    return reported(f"CPU at {OVERLOAD:g}x the second time", drift, "% more")


def rejection_cost_lines(
    api: str,
    real: LoadResult,
    heavy: LoadResult,
    floor: RejectionFloor,
    *,
    repeated: LoadResult | None = None,
    cpu_s_per_admission: Mapping[str, float],
) -> list[CardLine]:
    """Latency and CPU time of a rejection, and those of the rejection floor.

    `repeated`: the lower load after the heavy one. If the clients could not send as often as planned, there are too
    few rejections for a figure, and only their lag is reported.
    """
    is_judged, label = api == JUDGED_API, APIS[api]
    lag = max(real.client_lag_s, heavy.client_lag_s)
    if not is_judged and lag > MAX_CLIENT_LAG_S:
        return [reported(f"{label}: the clients could not keep up, lag", lag, "s")]
    less = mean_cost(real.cost, repeated.cost) if repeated else real.cost
    costs = cpu_us_per_rejected(less, heavy.cost, cpu_s_per_admission)
    gross = sum(cpu_us_per_rejected(less, heavy.cost, {}).values())
    total, p99 = sum(costs.values()), quantile(real.rejection_latencies, 0.99)
    p99_label, cpu_label = f"{label}: P99 of a rejection", f"{label}: CPU of a rejection, all tiers"
    return [
        reported(f"{label}: P50 of a rejection", quantile(real.rejection_latencies, 0.5), "s"),
        at_most(p99_label, p99, MAX_REJECTION_LATENCY_S, "s") if is_judged else reported(p99_label, p99, "s"),
        reported(f"{label}: P99 of the rejection floor", quantile(floor.latencies_s, 0.99), "s"),
        *(reported(f"{label}: CPU of a rejection, {tier}", cost, "us") for tier, cost in costs.items()),
        at_most(cpu_label, total, MAX_REJECTION_CPU_US, "us") if is_judged else reported(cpu_label, total, "us"),
        reported(f"{label}: CPU of a rejection with admitted requests", gross, "us"),
        reported(f"{label}: CPU of the rejection floor", US_PER_S * floor.cpu_s, "us"),
    ]
