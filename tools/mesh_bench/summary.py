"""Medians, slopes and verdicts of a comparison. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from mesh_bench.comparison import SystemRun
from mesh_bench.peers import DIRECT, PENSTOCK
from mesh_bench.points import POINTS
from mesh_bench.systems import ROUTER

TIERS = ("edge", "auth", "queue", "scheduler")  # of a mesh; its worker is apart, like the worker behind a router
OVER = (*TIERS, ROUTER)
_ENGINE_STEP_US = 5_000.0  # first token of the simulated engine at the point `low`; the mock sends it at once


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFigures:
    """Medians of one system; None if its points were not measured. CPU in us, of `OVER` unless by tier."""

    light_token_us: float | None
    light_request_us: float | None
    light_request_tiers_us: Mapping[str, float]
    loaded_token_us: float | None  # with the request's share
    max_request_us: float | None  # 64 at once, 1 token
    max_request_tiers_us: Mapping[str, float]
    max_token_us: float | None
    max_rate: float | None  # requests/s
    max64_token_rate: float | None  # tokens/s of 64 streams of 64 tokens
    json_request_us: float | None
    json_rate: float | None
    session_token_us: float | None
    session_edge_token_us: float | None
    session64_token_us: float | None  # with the request's share
    session_client_token_us: float | None
    added_first_p50_us: float | None
    added_first_p99_us: float | None
    idle_us_s: float
    memory_mb: float
    failed: int  # errors, answers of a wrong length and requests that were not sent


@dataclass(frozen=True, slots=True)
class Verdict:
    figure: str
    measured: float
    goal: str
    is_met: bool


def slope(short_us: float, long_us: float, short_tokens: int, long_tokens: int) -> tuple[float, float]:
    """Return (us/token, us/request) of requests of two lengths, from the CPU of one request of each."""
    token_us = (long_us - short_us) / (long_tokens - short_tokens)
    return token_us, short_us - token_us * short_tokens


def summarise(runs: Mapping[str, Sequence[SystemRun]]) -> dict[str, SystemFigures]:
    direct = runs.get(DIRECT, ())
    return {name: _figures(each, direct, is_mesh=name.startswith(PENSTOCK)) for name, each in runs.items()}


def _figures(runs: Sequence[SystemRun], direct: Sequence[SystemRun], *, is_mesh: bool) -> SystemFigures:
    light = _slope(runs, "light1", "light65")
    at_most = _slope(runs, "max1", "max256")
    session = _slope(runs, "session64", "session512")
    session_edge = _slope(runs, "session64", "session512", ("edge",))
    session_client = _slope(runs, "session64", "session512", ("load",))
    ready = _ENGINE_STEP_US if is_mesh else 0.0
    return SystemFigures(
        light_token_us=light and light[0],
        light_request_us=light and light[1],
        light_request_tiers_us=_tiers(runs, "light1"),
        loaded_token_us=_token_us(runs, "loaded"),
        max_request_us=_request_us(runs, "max1", 1),
        max_request_tiers_us=_tiers(runs, "max1"),
        max_token_us=at_most and at_most[0],
        max_rate=_median(runs, "max1", lambda run: run.results["max1"].requests / run.results["max1"].wall_s),
        max64_token_rate=_median(runs, "max64", lambda run: run.results["max64"].tokens / run.results["max64"].wall_s),
        json_request_us=_request_us(runs, "json", 1),
        json_rate=_median(runs, "json", lambda run: run.results["json"].requests / run.results["json"].wall_s),
        session_token_us=session and session[0],
        session_edge_token_us=session_edge and session_edge[0],
        session64_token_us=_token_us(runs, "session64"),
        session_client_token_us=session_client and session_client[0],
        added_first_p50_us=_added(runs, direct, ready, lambda run: run.results["low"].first_p50_us),
        added_first_p99_us=_added(runs, direct, ready, lambda run: run.results["low"].first_p99_us),
        idle_us_s=median(sum(run.idle_us_s.get(tier, 0.0) for tier in OVER) for run in runs),
        memory_mb=median(sum(run.memory_mb.get(tier, 0.0) for tier in OVER) for run in runs),
        failed=sum(each.errors + each.wrong + each.overrun for run in runs for each in run.results.values()),
    )


def _median(runs: Sequence[SystemRun], point: str, figure: Callable[[SystemRun], float]) -> float | None:
    values = [figure(run) for run in runs if point in run.results]
    return median(values) if values else None


def _token_us(runs: Sequence[SystemRun], point: str, tiers: Sequence[str] = OVER) -> float | None:
    return _median(runs, point, lambda run: _cpu(run, point, tiers) / max(1.0, run.results[point].tokens))


def _request_us(runs: Sequence[SystemRun], point: str, tokens: int, tiers: Sequence[str] = OVER) -> float | None:
    """CPU of a request of `tokens` tokens. Counted by tokens, because some requests straddle an end of the window."""
    token_us = _token_us(runs, point, tiers)
    return None if token_us is None else token_us * tokens


def _tiers(runs: Sequence[SystemRun], point: str) -> dict[str, float]:
    measured = {tier for run in runs for tier in run.cpu_us.get(point, {})} - {"load"}
    return {tier: _request_us(runs, point, 1, (tier,)) or 0.0 for tier in sorted(measured)}


def _slope(runs: Sequence[SystemRun], short: str, long: str, tiers: Sequence[str] = OVER) -> tuple[float, float] | None:
    short_tokens, long_tokens = POINTS[short].tokens, POINTS[long].tokens
    short_us = _request_us(runs, short, short_tokens, tiers)
    long_us = _request_us(runs, long, long_tokens, tiers)
    if short_us is None or long_us is None:
        return None
    return slope(short_us, long_us, short_tokens, long_tokens)


def _cpu(run: SystemRun, point: str, tiers: Sequence[str]) -> float:
    return sum(run.cpu_us[point].get(tier, 0.0) for tier in tiers)


def _added(
    runs: Sequence[SystemRun], direct: Sequence[SystemRun], ready_us: float, figure: Callable[[SystemRun], float]
) -> float | None:
    own, without = _median(runs, "low", figure), _median(direct, "low", figure)
    return None if own is None or without is None else own - without - ready_us


# Goal of ours against a peer: figure, attribute, peer, bound of the ratio.
_RATIOS = (
    ("light us/token", "light_token_us", "sglang-router", 1.0),
    ("loaded us/token", "loaded_token_us", "sglang-router", 1.5),
    ("light us/request", "light_request_us", "sglang-router", 3.0),
    ("us/request at 64 at once", "max_request_us", "sglang-router", 5.0),
    ("added TTFT p50", "added_first_p50_us", "sglang-router", 3.0),
    ("added TTFT p99", "added_first_p99_us", "sglang-router", 4.0),
    ("light us/request", "light_request_us", "litellm", 0.15),
    ("light us/token", "light_token_us", "litellm", 0.05),
)
# Goal without a peer: figure, attribute, bound.
_BOUNDS = (
    ("session us/token, edge", "session_edge_token_us", 3.0),
    ("session us/token, four tiers", "session_token_us", 8.0),
    ("session us/token with the request's share, 64 tokens", "session64_token_us", 15.0),
    ("idle us/s, four tiers", "idle_us_s", 5_000.0),
)
_MIN_RATE = 2_500.0  # requests/s


def judge(figures: Mapping[str, SystemFigures], ours: str = PENSTOCK) -> list[Verdict]:
    """Return the verdict of each goal whose figures were measured."""
    if ours not in figures:
        return []
    own, verdicts = figures[ours], []
    for figure, attribute, peer, bound in _RATIOS:
        value, other = getattr(own, attribute), getattr(figures.get(peer), attribute, None)
        if value is not None and other is not None and other > 0:  # noise can exceed a peer's added latency
            ratio = value / other
            verdicts.append(Verdict(f"{figure} / {peer}", ratio, f"<= {bound:g}x", ratio <= bound))
    for figure, attribute, bound in _BOUNDS:
        value = getattr(own, attribute)
        if value is not None:
            verdicts.append(Verdict(figure, value, f"<= {bound:,g}", value <= bound))
    if own.max_rate is not None:
        verdicts.append(Verdict("requests/s", own.max_rate, f">= {_MIN_RATE:,g}", own.max_rate >= _MIN_RATE))
    return verdicts
