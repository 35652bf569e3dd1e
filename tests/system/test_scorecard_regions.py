"""The proof of regions, short: a region is killed under four streams."""

import io
from dataclasses import asdict

from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.regions.options import RegionsOptions
from penstock.proofs.regions.proof import regions

TIMED = "longest of these times"  # depends on free cores


async def test_a_region_is_killed_under_streams_and_no_client_loses_a_token(tiny_model):
    mesh = MeshOptions(model=tiny_model, engine="sim")
    options = RegionsOptions(parts=("kill",), streams=4, tokens=24)
    card = await regions(options, mesh, Console(file=io.StringIO()))
    assert not card.void_reason
    lines = {line.figure.removeprefix("kill: "): asdict(line) for line in card.lines}
    missed = [figure for figure, line in lines.items() if not line["is_met"] and figure != TIMED]
    assert not missed, card.notes
    assert lines["of them running when the region was killed"]["measured"] == 4
    assert 0 < lines[TIMED]["measured"] <= lines["longest of these times from the kill"]["measured"]
    assert lines["unary calls"]["measured"] > 0
