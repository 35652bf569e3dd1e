"""From a scenario file to a scenario. Every field is checked, and what is wrong is named with its path."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.simulator.baselines import POLICIES
from penstock.simulator.errors import ScenarioError
from penstock.simulator.scenario import (
    PRIORITIES,
    Client,
    Loss,
    Queues,
    Scenario,
    Schedulers,
    Targets,
    Tenant,
    WorkerKind,
)
from penstock.simulator.scenario_table import Table
from penstock.simulator.traffic.arrivals import Arrivals, Bursty, Poisson, Regular, Window
from penstock.simulator.traffic.demand import Demand, Drawn, Traced
from penstock.simulator.traffic.lengths import Fixed, Lengths, LogNormal, Uniform
from penstock.simulator.traffic.shared_prefixes import SharedTexts
from penstock.simulator.traffic.traces import TraceError, azure, mooncake, readable, servegen
from penstock.worker.engine.batching import ContinuousBatching
from penstock.worker.engine.step_law import StepTimeModel

MS = 1e-3
ENGINES = ("fast", "exact")


def read_scenario(path: Path) -> Scenario:
    """Raises ScenarioError; paths of traces are relative to the file's folder."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError("", f"{path} cannot be read: {error}") from error
    return scenario_of(values, path.parent, path.stem)


def scenario_of(values: Mapping[str, Any], folder: Path = Path(), name: str = "scenario") -> Scenario:
    table = Table(values)
    tenants = table.tables("tenants", lambda each: _tenants(each, folder))
    workers = table.tables("workers", _worker_kind) or (WorkerKind(),)
    scenario = Scenario(
        name=table.text("name", name),
        tenants=tuple(tenant for some in tenants for tenant in some),
        workers=workers,
        queues=_section(table, "queues", _queues),
        schedulers=_section(table, "schedulers", _schedulers),
        losses=table.tables("losses", lambda each: _loss(each, sum(kind.count for kind in workers))),
        targets=_section(table, "slo", _targets),
        duration=table.number("duration", 60.0, above=True),
        warm_up=table.number("warm_up", 0.0),
        drain=table.number("drain", 60.0),
        seed=table.count("seed", 0),
        load=table.number("load", 1.0, above=True),
        load_sweep=table.numbers("load_sweep", above=0.0),
        link_delay=table.number("link_delay_ms", 0.5) * MS,
        detect_loss=table.number("detect_loss", 1.0),
        engine=table.text("engine", "fast", among=ENGINES),
        sample_every=table.number("sample_every", 0.25, above=True),
    )
    table.done()
    _check(scenario)
    return scenario


def _check(scenario: Scenario) -> None:
    if scenario.warm_up >= scenario.duration:
        raise ScenarioError("warm_up", f"must be below duration, which is {scenario.duration:g}")
    names = [tenant.name for tenant in scenario.tenants]
    if not names:
        raise ScenarioError("tenants", "is missing; a scenario needs one tenant at least")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ScenarioError("tenants", f"name {twice!r} twice; names must differ")


def _section(table: Table, name: str, read: Any) -> Any:
    inner = table.table(name)
    found = read(inner)
    inner.done()
    return found


def _worker_kind(table: Table) -> WorkerKind:
    return WorkerKind(
        count=table.count("count", 1, low=1),
        zone=table.text("zone", ""),
        slots=table.count("slots", 256, low=1),
        kv_blocks=table.count("kv_blocks", 7_500, low=1),
        block_size=table.count("block_size", 16, low=1),
        context_length=table.count("context_length", 131_072, low=2),
        batching=ContinuousBatching(
            token_budget=table.count("token_budget", 512, low=1),
            oldest_share=table.number("oldest_share", 0.25, above=True, high=1.0),
        ),
        law=_section(table, "step_law", _law),
    )


def _law(table: Table) -> StepTimeModel:
    return StepTimeModel(
        base_s=table.number("base_ms", 6.0, above=True) * MS,
        per_prefill_token_s=table.number("prefill_token_ms", 0.1) * MS,
        per_decode_seq_s=table.number("decode_seq_ms", 0.05) * MS,
        per_context_token_s=table.number("context_token_ms", 0.0) * MS,
        per_prefill_context_token_s=table.number("prefill_context_token_ms", 0.0) * MS,
    )


def _queues(table: Table) -> Queues:
    policy = table.text("policy", "penstock", among=POLICIES)
    return Queues(
        shards=table.count("shards", 1, low=1),
        policy=policy,
        max_depth=table.count("max_depth", 100_000, low=1),
        max_tokens=table.count("max_tokens", 2_000_000_000, low=1),
        policy_options={name: table.number(name) for name in POLICIES[policy].options if name in table},
    )


def _schedulers(table: Table) -> Schedulers:
    return Schedulers(
        count=table.count("count", 1, low=1),
        look_ahead=table.count("look_ahead", 1),
        lease_ttl=table.number("lease_ttl", 5.0, above=True),
    )


def _loss(table: Table, workers: int) -> Loss:
    worker = table.count("worker")
    if worker >= workers:
        raise ScenarioError(table.at("worker"), f"must be below {workers}, the number of workers")
    return Loss(worker=worker, at=table.number("at"), back_after=table.number("back_after", 0.0))


def _targets(table: Table) -> Targets:
    return Targets(ttft=table.number("ttft", 1.0, above=True), tbt=table.number("tbt", 0.1, above=True))


def _tenants(table: Table, folder: Path) -> list[Tenant]:
    """Return one tenant, or one for each client of a trace that names its clients."""
    name = table.text("name")
    common: dict[str, Any] = {
        "priority": PRIORITIES[table.text("class", "standard", among=PRIORITIES)],
        "weight": table.number("weight", 1.0, above=True),
        "zone": table.text("zone", ""),
        "over_declare": table.number("over_declare", 1.0, low=1.0),
        "declare_noise": table.number("declare_noise", 0.0, high=1.0),
        "client": _section(table, "client", _client),
    }
    if "trace" in table:
        demands = _section(table, "trace", lambda trace: _traced(trace, folder))
        common["shares_prefixes"] = any(isinstance(each, Traced) and each.shares_prefixes for each in demands.values())
        return [Tenant(name=f"{name}{suffix}", demand=demand, **common) for suffix, demand in demands.items()]
    arrivals = _section(table, "arrivals", _arrivals)
    prompt, output = _section(table, "prompt", _lengths), _section(table, "output", _lengths)
    shared = _section(table, "prefix", _shared) if "prefix" in table else None
    demand = Drawn(arrivals, prompt, output, shared)
    return [Tenant(name=name, demand=demand, shares_prefixes=shared is not None, **common)]


def _client(table: Table) -> Client:
    return Client(
        patience=table.number("patience", 0.0),
        leave_share=table.number("leave_share", 0.0, high=1.0),
        leave_within=table.number("leave_within", 5.0, above=True),
        deadline=table.number("deadline", 0.0),
        retries=table.count("retries", 0),
        backoff=table.number("backoff", 0.5),
    )


def _arrivals(table: Table) -> Arrivals:
    kind, rate = table.text("kind", "poisson", among=("poisson", "bursty", "regular")), table.number("rate", above=True)
    if kind == "bursty":
        return Bursty(rate, on=table.number("on", above=True), off=table.number("off"))
    if kind == "regular":
        return Regular(rate)
    return Poisson(rate, table.tables("windows", _window))


def _window(table: Table) -> Window:
    start = table.number("start")
    return Window(start, table.number("end", low=start, above=True), table.number("factor"))


def _lengths(table: Table) -> Lengths:
    match table.text("kind", "fixed", among=("fixed", "uniform", "lognormal")):
        case "uniform":
            low = table.count("low", low=1)
            return Uniform(low, table.count("high", low=low))
        case "lognormal":
            low = table.count("low", 1, low=1)
            return LogNormal(
                table.number("mean", above=True), table.number("sigma"), low, table.count("high", 8_192, low=low)
            )
        case _:
            return Fixed(table.count("tokens", low=1))


def _shared(table: Table) -> SharedTexts:
    return SharedTexts(
        tokens=table.count("tokens", low=1),
        texts=table.count("texts", 1, low=1),
        share=table.number("share", 1.0, high=1.0),
    )


def _traced(table: Table, folder: Path) -> Mapping[str, Demand]:
    kind = table.text("kind", among=("azure", "mooncake", "servegen"))
    path = folder / table.text("path")
    if kind == "servegen":
        start, clients = table.number("start", 0.0), table.count("clients", 8, low=1)
    try:
        with readable(path, kind):
            if kind == "servegen":
                return {f"-{number}": each for number, each in servegen(path, start=start, clients=clients).items()}
            return {"": azure(path) if kind == "azure" else mooncake(path)}
    except TraceError as error:
        raise ScenarioError(table.at("path"), str(error)) from error
