"""Figures of a simulation: those of `penstock bench` under the same names, and those that only a simulation has."""

import math
from typing import Any

from penstock.bench.report import Slo, report_of
from penstock.bench.statistics import quantile
from penstock.bench.transcript import OK
from penstock.simulator.mesh.batch_replica import SimBatch
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.report.ideal_caches import CachedPrompt, clairvoyant_tokens, shared_lru_tokens
from penstock.simulator.report.service_accounting import INPUT_WEIGHT, OUTPUT_WEIGHT
from penstock.simulator.simulation import Simulation


def figures_of(simulation: Simulation) -> dict[str, Any]:
    """Return the figures as plain JSON. Requests of the warm-up are not counted, and rates are per second of the rest
    of the duration; work, service and predictions are those of the whole run.
    """
    scenario, ledger = simulation.scenario, simulation.ledger
    slo = Slo(ttft=scenario.targets.ttft, tpot=scenario.targets.tbt)
    counted = [each for each in ledger.client_requests if each.transcript.started_at >= scenario.warm_up]
    offered, gaps = scenario.duration - scenario.warm_up, ledger.service.gaps()
    bench = report_of([each.transcript for each in counted], offered, {}, slo)
    return {
        **bench,
        "goodput_weighted_tokens_per_s": sum(weighted_tokens(each) for each in counted if meets_slo(each, slo))
        / offered,
        **_work_figures(simulation),
        "engine_tokens_abandoned": ledger.abandoned_tokens,
        **_prefix_figures(simulation),
        **_batch_figures(simulation),
        **_prediction_figures(ledger.waits, ledger.unpredicted_leases),
        **({"same_zone_share": ledger.same_zone_leases / ledger.zoned_leases} if ledger.zoned_leases else {}),
        "rejected_by_edges_share": simulation.mesh.edge.rejected_by_edge_share,
        "attempts_per_request": _share(sum(each.attempts for each in ledger.requests), len(ledger.requests)),
        "first_tokens": ledger.first_tokens,
        "first_tokens_late_share": _share(ledger.late_first_tokens, ledger.first_tokens),
        "service_by_tenant": {name: sums[-1] for name, sums in ledger.service.cumulative().items()},
        "service_over_time": {name: _thinned(sums) for name, sums in ledger.service.cumulative().items()},
        "max_service_gap": gaps.widest,
        "max_service_lead": gaps.lead,
        "simulated_s": simulation.events.now,
        "events": simulation.events.events_run,
        "seed": scenario.seed,
        "load": scenario.load,
        "policy": scenario.queues.policy,
    }


def meets_slo(request: SimRequest, slo: Slo) -> bool:
    return slo.is_met_by(request.transcript)


def weighted_tokens(request: SimRequest) -> int:
    """Return the weighted tokens of a request."""
    return request.prompt_tokens * INPUT_WEIGHT + request.output_tokens * OUTPUT_WEIGHT


def _work_figures(simulation: Simulation) -> dict[str, Any]:
    """Engine tokens are computed positions. Useful ones are those of one pass over each delivered prompt and answer,
    except for cached positions.
    """
    made = sum(each.totals.prefill_tokens + each.totals.decode_tokens for each in simulation.worker_lives)
    busy = sum(each.totals.busy_s for each in simulation.worker_lives)
    answered = [each for each in simulation.ledger.requests if each.transcript.outcome == OK]
    useful = sum(
        each.prompt_tokens + each.output_tokens - 1 - min(each.prompt_tokens - 1, each.cached_tokens)
        for each in answered
    )
    return {
        "engine_steps": sum(each.totals.steps for each in simulation.worker_lives),
        "engine_tokens": made,
        "engine_tokens_wasted": made - useful,
        "engine_tokens_wasted_share": _share(made - useful, made),
        "engine_busy_share": _share(busy, simulation.events.now * simulation.scenario.worker_count),
    }


def _batch_figures(simulation: Simulation) -> dict[str, Any]:
    """Return one row for each batch. Times are in s from the start; None: unknown."""
    rows = [_batch_row(each) for each in simulation.mesh.batches.batches]
    return {"batches": rows} if rows else {}


def _batch_row(batch: SimBatch) -> dict[str, Any]:
    facts = batch.facts
    return {
        "tenant": batch.tenant.name,
        "lines": facts.lines,
        "lines_done": facts.completed,
        "input_tokens": facts.input_tokens,
        "output_tokens": facts.output_tokens,
        "ended_s": None if facts.expired else facts.ended_at or None,
        "expected_end_s": batch.expected_end or None,
        "expires_s": facts.expires_at,
        "is_in_time": batch.is_in_time,
    }


def _prefix_figures(simulation: Simulation) -> dict[str, Any]:
    """Return the share of prompt tokens that engines found in their caches, beside the shares that ideal caches find:
    one shared cache of the same total size (least recently used, clairvoyant), and one unbounded cache (repeated).
    """
    if not simulation.scenario.has_shared_prefixes:
        return {}
    computed = [each for each in simulation.ledger.requests if each.engine_tokens]
    prompts = [
        CachedPrompt(
            each.prompt_tokens,
            tuple((each.tenant.name, piece) for piece in each.prefix.piece_ids),
            each.prefix.piece_tokens,
        )
        for each in computed
    ]
    tokens, cached = sum(each.tokens for each in prompts), sum(each.cached_tokens for each in computed)
    capacity = sum(kind.count * kind.kv_blocks * kind.block_size for kind in simulation.scenario.workers)
    shares = {
        "hit_share": cached,
        "shared_lru_share": shared_lru_tokens(prompts, capacity),
        "clairvoyant_share": clairvoyant_tokens(prompts, capacity),
        "repeated_share": shared_lru_tokens(prompts, math.inf),
    }
    return {"prefix_cache": {"cached_tokens": cached} | {name: _share(each, tokens) for name, each in shares.items()}}


def _prediction_figures(waits: list[tuple[float, float]], unpredicted: int) -> dict[str, Any]:
    errors = [actual - predicted for predicted, actual in waits]
    absolute = [abs(error) for error in errors]
    counts = {"count": len(errors), "without": unpredicted}
    if not errors:
        return {"queue_wait_prediction": counts}
    relative = [abs(error) / actual for error, (_, actual) in zip(errors, waits, strict=True) if actual > 0]
    return {
        "queue_wait_prediction": {
            **counts,
            "bias_s": sum(errors) / len(errors),
            "error_p50_s": quantile(absolute, 0.5),
            "error_p95_s": quantile(absolute, 0.95),
            "relative_error_p95": quantile(relative, 0.95) if relative else 0.0,
        }
    }


def _thinned(sums: list[float], max_points: int = 120) -> list[float]:
    """Return at most `max_points` points, including the last one."""
    every = max(1, -(-len(sums) // max_points))
    return sums[::-1][::every][::-1]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
