"""Figures of a run, computed from its transcripts. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from penstock.bench.statistics import distribution
from penstock.bench.tables import new_table
from penstock.bench.transcript import CANCELLED, OK, Transcript

SHED_CODES = ("RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")  # rejections by policy; any other error is a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits that a request must both meet to count as goodput (as in DistServe, Zhong et al. 2024)."""

    ttft: float = 1.0  # s
    tpot: float = 0.1  # s

    def is_met_by(self, transcript: Transcript) -> bool:
        return (
            transcript.outcome == OK and (transcript.ttft or 0.0) <= self.ttft and (transcript.tpot or 0.0) <= self.tpot
        )


def report_of(transcripts: Sequence[Transcript], wall_s: float, cpu_s: Mapping[str, float], slo: Slo) -> dict[str, Any]:
    """Return the figures of a run as plain JSON. `cpu_s` is by tier."""
    done = [each for each in transcripts if each.outcome == OK]
    shed = [each for each in transcripts if each.code in SHED_CODES]
    failed = [each for each in transcripts if each.outcome not in (OK, CANCELLED) and each.code not in SHED_CODES]
    tokens = sum(each.tokens for each in transcripts)
    good = [each for each in done if slo.is_met_by(each)]
    return {
        "requests": len(transcripts),
        "completed": len(done),
        "cancelled": sum(each.outcome == CANCELLED for each in transcripts),
        "shed": len(shed),
        "shed_by_reason": dict(Counter(each.outcome for each in shed)),
        "shed_latency_s": distribution([each.ended_at - each.started_at for each in shed]),
        "shed_without_retry_after": sum(each.retry_after is None for each in shed if each.code == SHED_CODES[0]),
        "failures": len(failed),
        "failures_by_reason": dict(Counter(each.outcome for each in failed)),
        "index_errors": sum(each.index_errors for each in transcripts),
        "wall_s": wall_s,
        "output_tokens": tokens,
        "output_tokens_per_s": tokens / wall_s,
        "requests_per_s": len(done) / wall_s,
        "goodput_requests_per_s": len(good) / wall_s,
        "goodput_share": len(good) / len(transcripts) if transcripts else 0.0,
        "slo": {"ttft_s": slo.ttft, "tpot_s": slo.tpot},
        "ttft_s": distribution([each.ttft for each in done if each.ttft is not None]),
        "tpot_s": distribution([each.tpot for each in done if each.tpot is not None]),
        "itl_s": distribution([gap for each in done for gap in each.token_gaps]),
        "latency_s": distribution([each.ended_at - each.started_at for each in done]),
        "cpu_s_by_tier": dict(cpu_s),
        "cpu_us_per_token_by_tier": {tier: spent / tokens * 1e6 for tier, spent in cpu_s.items()} if tokens else {},
    }


def figures_table(figures: Mapping[str, Any]) -> Table:
    """Return a table of latencies in ms."""
    columns = ("mean", "p50", "p90", "p99", "max")
    table = new_table("ms", numbers=columns)
    rows = {
        "TTFT": "ttft_s",
        "TPOT": "tpot_s",
        "ITL": "itl_s",
        "latency": "latency_s",
        "shed latency": "shed_latency_s",
    }
    for label, key in rows.items():
        if figures[key]:
            table.add_row(label, *(f"{figures[key][column] * 1e3:,.1f}" for column in columns))
    return table


def summary_lines(figures: Mapping[str, Any]) -> list[str]:
    counts = (
        f"{figures['completed']} of {figures['requests']} requests completed in {figures['wall_s']:.1f} s, "
        f"{figures['cancelled']} cancelled, {figures['shed']} shed, {figures['failures']} failed; "
        f"{figures['index_errors']} tokens missing, doubled or out of order"
    )
    rates = (
        f"{figures['output_tokens_per_s']:,.1f} tokens/s, {figures['requests_per_s']:.2f} requests/s; "
        f"goodput {figures['goodput_requests_per_s']:.2f} requests/s ({figures['goodput_share']:.0%}) within "
        f"TTFT {figures['slo']['ttft_s'] * 1e3:.0f} ms and TPOT {figures['slo']['tpot_s'] * 1e3:.0f} ms"
    )
    lines = [counts, rates]
    for key in ("shed_by_reason", "failures_by_reason"):
        if figures[key]:
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(figures[key].items()))
            lines.append(f"{key.replace('_', ' ')}: {reasons}")
    if figures["cpu_us_per_token_by_tier"]:
        spent = ", ".join(f"{tier} {us:,.0f}" for tier, us in figures["cpu_us_per_token_by_tier"].items())
        lines.append(f"CPU us per token: {spent}")
    return lines
