"""Reads scenario files (TOML) of several regions. A field outside of the regions holds for each of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.simulator.errors import ScenarioError
from penstock.simulator.regions.scenario import RegionLoss, RegionsScenario
from penstock.simulator.scenario import Scenario
from penstock.simulator.scenario_file import SECONDS_PER_MS, read_values, scenario_of
from penstock.simulator.scenario_table import ScenarioTable

REGIONS = "regions"
OWN_FIELDS = ("name", "region_delay_ms", "spills", "region_losses", "client_retry")


def read_any_scenario(path: Path) -> Scenario | RegionsScenario:
    """Read a scenario of one mesh, or one of several regions. Raises ScenarioError."""
    values = read_values(path)
    read = regions_of if REGIONS in values else scenario_of
    return read(values, path.parent, path.stem)


def regions_of(values: Mapping[str, Any], folder: Path = Path(), name: str = "scenario") -> RegionsScenario:
    """Return the scenario that the tables of a file describe. The seeds of its regions are successive."""
    common = {field: value for field, value in values.items() if field not in (*OWN_FIELDS, REGIONS)}
    tables = values[REGIONS]
    if not isinstance(tables, list) or len(tables) < 2:
        raise ScenarioError(REGIONS, "must be a list of at least two tables")
    regions = tuple(_region(common, each, place, folder) for place, each in enumerate(tables))
    names = [each.name for each in regions]
    if twice := next((each for each in names if names.count(each) > 1), None):
        raise ScenarioError(REGIONS, f"has the name {twice!r} twice; names must differ")
    table = ScenarioTable({field: value for field, value in values.items() if field in OWN_FIELDS})
    return RegionsScenario(
        name=table.text("name", name),
        regions=regions,
        delay=table.number("region_delay_ms", 20.0) * SECONDS_PER_MS,
        spills=table.flag("spills", default=True),
        losses=table.sections("region_losses", lambda each: _loss(each, names)),
        client_retry=table.number("client_retry", 0.05),
    )


def _region(common: Mapping[str, Any], values: object, place: int, folder: Path) -> Scenario:
    path = f"{REGIONS}[{place}]"
    if not isinstance(values, dict) or "name" not in values:
        raise ScenarioError(path, "must be a table with a name")
    seed = common.get("seed", 0)
    own = {**common, "seed": seed + place if isinstance(seed, int) else seed, **values}
    try:
        return scenario_of(own, folder)
    except ScenarioError as error:
        raise ScenarioError(f"{path}.{error.field}", error.message) from error


def _loss(table: ScenarioTable, regions: list[str]) -> RegionLoss:
    return RegionLoss(
        region=table.text("region", choices=regions),
        lost_at=table.number("at"),
        returns_after=table.number("returns_after", 0.0),
    )
