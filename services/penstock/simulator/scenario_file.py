"""Reads scenario files (TOML). Every field is checked, and an error names the path of its field."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.simulator.baselines import POLICIES
from penstock.simulator.errors import ScenarioError
from penstock.simulator.scenario import (
    PRIORITIES,
    ClientBehavior,
    QueueSettings,
    Scenario,
    SchedulerSettings,
    SimTenant,
    SloTargets,
    WorkerKind,
    WorkerLoss,
)
from penstock.simulator.scenario_table import ScenarioTable
from penstock.simulator.traffic.arrivals import ArrivalProcess, Bursty, Diurnal, Poisson, RateWindow, Regular
from penstock.simulator.traffic.backlog import Backlog
from penstock.simulator.traffic.demand import (
    Demand,
    Fixed,
    LengthDistribution,
    LogNormal,
    SampledDemand,
    TraceDemand,
    Uniform,
)
from penstock.simulator.traffic.shared_prefixes import PrefixPool
from penstock.simulator.traffic.tool_loops import ToolLoops
from penstock.simulator.traffic.traces import TraceError, read_azure, read_mooncake, read_servegen, trace_errors
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.simulated.step_time import StepTimeModel

SECONDS_PER_MS = 1e-3
ENGINES = ("fast", "exact")


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file; raises ScenarioError. Paths of traces are relative to the file's folder."""
    return scenario_of(read_values(path), path.parent, path.stem)


def read_values(path: Path) -> dict[str, Any]:
    """Return the tables of a file. Raises ScenarioError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError("", f"{path} cannot be read: {error}") from error


def scenario_of(values: Mapping[str, Any], folder: Path = Path(), name: str = "scenario") -> Scenario:
    """Return the scenario that the tables of a file describe; `folder` and `name` are those of the file."""
    table = ScenarioTable(values)
    tenants = table.sections("tenants", lambda each: _tenants(each, folder))
    workers = table.sections("workers", _worker_kind) or (WorkerKind(),)
    scenario = Scenario(
        name=table.text("name", name),
        tenants=tuple(tenant for group in tenants for tenant in group),
        workers=workers,
        queues=table.section("queues", _queue_settings),
        schedulers=table.section("schedulers", _scheduler_settings),
        losses=table.sections("losses", lambda each: _worker_loss(each, sum(kind.count for kind in workers))),
        targets=table.section("slo", _slo_targets),
        duration=table.number("duration", 60.0, is_exclusive=True),
        warm_up=table.number("warm_up", 0.0),
        drain=table.number("drain", 60.0),
        seed=table.count("seed", 0),
        load=table.number("load", 1.0, is_exclusive=True),
        load_sweep=table.numbers("load_sweep", minimum=0.0),
        link_delay=table.number("link_delay_ms", 0.5) * SECONDS_PER_MS,
        loss_detection_delay=table.number("loss_detection_delay", 1.0),
        engine=table.text("engine", "fast", choices=ENGINES),
        places_by_prefix=table.flag("places_by_prefix", default=True),
        sample_every=table.number("sample_every", 0.25, is_exclusive=True),
    )
    table.check_unknown()
    _check_scenario(scenario)
    return scenario


def _check_scenario(scenario: Scenario) -> None:
    if scenario.warm_up >= scenario.duration:
        raise ScenarioError("warm_up", f"must be below duration, which is {scenario.duration:g}")
    names = [tenant.name for tenant in scenario.tenants]
    if not names:
        raise ScenarioError("tenants", "is missing; a scenario needs at least one tenant")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ScenarioError("tenants", f"has the name {twice!r} twice; names must differ")


def _worker_kind(table: ScenarioTable) -> WorkerKind:
    return WorkerKind(
        count=table.count("count", 1, minimum=1),
        zone=table.text("zone", ""),
        slots=table.count("slots", 256, minimum=1),
        kv_blocks=table.count("kv_blocks", 7_500, minimum=1),
        block_size=table.count("block_size", 16, minimum=1),
        context_length=table.count("context_length", 131_072, minimum=2),
        batching=ContinuousBatching(
            token_budget=table.count("token_budget", 512, minimum=1),
            oldest_share=table.number("oldest_share", 0.25, is_exclusive=True, maximum=1.0),
        ),
        step_time=table.section("step_time", _step_time),
    )


def _step_time(table: ScenarioTable) -> StepTimeModel:
    return StepTimeModel(
        base_s=table.number("base_ms", 6.0, is_exclusive=True) * SECONDS_PER_MS,
        per_prefill_token_s=table.number("prefill_token_ms", 0.1) * SECONDS_PER_MS,
        per_decode_seq_s=table.number("decode_seq_ms", 0.05) * SECONDS_PER_MS,
        per_context_token_s=table.number("context_token_ms", 0.0) * SECONDS_PER_MS,
        per_prefill_context_token_s=table.number("prefill_context_token_ms", 0.0) * SECONDS_PER_MS,
    )


def _queue_settings(table: ScenarioTable) -> QueueSettings:
    policy = table.text("policy", "penstock", choices=POLICIES)
    return QueueSettings(
        shards=table.count("shards", 1, minimum=1),
        policy=policy,
        max_depth=table.count("max_depth", 100_000, minimum=1),
        max_tokens=table.count("max_tokens", 2_000_000_000, minimum=1),
        policy_options={name: table.number(name) for name in POLICIES[policy].options if name in table},
    )


def _scheduler_settings(table: ScenarioTable) -> SchedulerSettings:
    return SchedulerSettings(
        count=table.count("count", 1, minimum=1),
        look_ahead=table.count("look_ahead", 1),
        lease_ttl=table.number("lease_ttl", 5.0, is_exclusive=True),
    )


def _worker_loss(table: ScenarioTable, workers: int) -> WorkerLoss:
    worker = table.count("worker")
    if worker >= workers:
        raise ScenarioError(table.path_of("worker"), f"must be below {workers}, the number of workers")
    return WorkerLoss(worker=worker, lost_at=table.number("at"), returns_after=table.number("returns_after", 0.0))


def _slo_targets(table: ScenarioTable) -> SloTargets:
    return SloTargets(
        ttft=table.number("ttft", 1.0, is_exclusive=True), tbt=table.number("tbt", 0.1, is_exclusive=True)
    )


def _tenants(table: ScenarioTable, folder: Path) -> list[SimTenant]:
    """Return one tenant, or one for each client if the trace names its clients."""
    name = table.text("name")
    common: dict[str, Any] = {
        "priority": PRIORITIES[table.text("class", "batch" if "backlog" in table else "standard", choices=PRIORITIES)],
        "weight": table.number("weight", 1.0, is_exclusive=True),
        "zone": table.text("zone", ""),
        "over_declare": table.number("over_declare", 1.0, minimum=1.0),
        "declare_noise": table.number("declare_noise", 0.0, maximum=1.0),
    }
    if "backlog" in table:  # no client waits for its lines
        return [SimTenant(name=name, demand=_backlog(table), **common)]
    common["client"] = table.section("client", _client_behavior)
    if "trace" in table:
        demands = table.section("trace", lambda trace: _trace_demands(trace, folder))
        common["has_shared_prefixes"] = any(
            isinstance(each, TraceDemand) and each.has_shared_prefixes for each in demands.values()
        )
        return [SimTenant(name=f"{name}{suffix}", demand=demand, **common) for suffix, demand in demands.items()]
    arrivals = table.section("arrivals", _arrivals)
    output = table.section("output", _lengths)
    if "loop" in table:
        loops = table.section("loop", lambda loop: _tool_loops(loop, arrivals, output))
        return [SimTenant(name=name, demand=loops, has_shared_prefixes=True, **common)]
    prompt = table.section("prompt", _lengths)
    shared = table.section("prefix", _prefix_pool) if "prefix" in table else None
    demand = SampledDemand(arrivals, prompt, output, shared)
    return [SimTenant(name=name, demand=demand, has_shared_prefixes=shared is not None, **common)]


def _backlog(table: ScenarioTable) -> Backlog:
    lengths = table.section("prompt", _lengths), table.section("output", _lengths)
    lines, at, window = table.section("backlog", _batch_lines)
    return Backlog(lines, *lengths, at, window)


def _batch_lines(table: ScenarioTable) -> tuple[int, float, float]:
    return table.count("lines", minimum=1), table.number("at", 0.0), table.number("window", 86_400.0, is_exclusive=True)


def _client_behavior(table: ScenarioTable) -> ClientBehavior:
    return ClientBehavior(
        patience=table.number("patience", 0.0),
        leave_share=table.number("leave_share", 0.0, maximum=1.0),
        leave_within=table.number("leave_within", 5.0, is_exclusive=True),
        deadline=table.number("deadline", 0.0),
        retries=table.count("retries", 0),
        backoff=table.number("backoff", 0.5),
    )


def _arrivals(table: ScenarioTable) -> ArrivalProcess:
    kind, rate = (
        table.text("kind", "poisson", choices=("poisson", "bursty", "diurnal", "regular")),
        table.number("rate", is_exclusive=True),
    )
    if kind == "bursty":
        return Bursty(rate, mean_on_s=table.number("on", is_exclusive=True), mean_off_s=table.number("off"))
    if kind == "diurnal":
        period = table.number("period", is_exclusive=True)
        return Diurnal(rate, period, table.number("amplitude", maximum=1.0), table.number("peak_at", 0.0))
    if kind == "regular":
        return Regular(rate)
    return Poisson(rate, table.sections("windows", _rate_window))


def _rate_window(table: ScenarioTable) -> RateWindow:
    start = table.number("start")
    return RateWindow(start, table.number("end", minimum=start, is_exclusive=True), table.number("factor"))


def _lengths(table: ScenarioTable) -> LengthDistribution:
    match table.text("kind", "fixed", choices=("fixed", "uniform", "lognormal")):
        case "uniform":
            low = table.count("low", minimum=1)
            return Uniform(low, table.count("high", minimum=low))
        case "lognormal":
            low = table.count("low", 1, minimum=1)
            return LogNormal(
                table.number("mean", is_exclusive=True),
                table.number("sigma"),
                low,
                table.count("high", 8_192, minimum=low),
            )
        case _:
            return Fixed(table.count("tokens", minimum=1))


def _prefix_pool(table: ScenarioTable) -> PrefixPool:
    return PrefixPool(
        tokens=table.count("tokens", minimum=1),
        texts=table.count("texts", 1, minimum=1),
        share=table.number("share", 1.0, maximum=1.0),
    )


def _tool_loops(table: ScenarioTable, arrivals: ArrivalProcess, output: LengthDistribution) -> ToolLoops:
    return ToolLoops(
        arrivals,
        turns=table.section("turns", _lengths),
        growth=table.section("growth", _lengths),
        output_lengths=output,
        pause=table.number("pause", is_exclusive=True),
        instruction_tokens=table.count("instructions"),
        instruction_texts=table.count("texts", 1, minimum=1),
    )


def _trace_demands(table: ScenarioTable, folder: Path) -> Mapping[str, Demand]:
    kind = table.text("kind", choices=("azure", "mooncake", "servegen"))
    path = folder / table.text("path")
    if kind == "servegen":
        start, clients = table.number("start", 0.0), table.count("clients", 8, minimum=1)
    else:
        resolution = table.number("resolution", 0.0)
    try:
        with trace_errors(path, kind):
            if kind == "servegen":
                return {
                    f"-{number}": each for number, each in read_servegen(path, start=start, clients=clients).items()
                }
            recorded = read_azure(path) if kind == "azure" else read_mooncake(path)
            return {"": replace(recorded, resolution=resolution)}
    except TraceError as error:
        raise ScenarioError(table.path_of("path"), str(error)) from error
